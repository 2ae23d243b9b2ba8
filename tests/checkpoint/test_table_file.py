"""Files of one table: each format gives back what was written, and says what is wrong with a file that is another."""

from __future__ import annotations

import errno
import json
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zmqps.checkpoint import table_safetensors
from zmqps.checkpoint.rows import TableFacts
from zmqps.checkpoint.storage import LocalFile
from zmqps.checkpoint.table_file import TableFile, format_of, is_for_tables, read_table
from zmqps.core.protocol.arrays import Array
from zmqps.errors import (
    CheckpointCorruptError,
    CheckpointStorageError,
    ConfigurationError,
    DtypeError,
    ShapeError,
)


def facts(dim: int, table: str = "items") -> TableFacts:
    return TableFacts(table, dim, "default", 41, "0.1.0")


def rows_of(number: int, dim: int) -> tuple[Array, Array]:
    chance = np.random.default_rng(number)
    return chance.integers(-(1 << 63), 1 << 63, number, np.int64), chance.random((number, dim), np.float32)


def write(path: Path, ids: Array, values: Array, pieces: int = 3, table: str = "items") -> None:
    """Write rows, some at a time, after others that count for nothing."""
    with TableFile(path) as file:
        file.begin(facts(values.shape[1], table))
        file.write(np.arange(5), np.ones((5, values.shape[1]), np.float32))
        file.begin(facts(values.shape[1], table))
        for some in np.array_split(np.arange(ids.size), pieces):
            file.write(ids[some], values[some])
        file.publish()
    assert file.rows == ids.size


def read(path: Path, dim: int, most: int = 4, table: str = "items") -> tuple[Array, Array]:
    found = list(read_table(path, table, dim, most=most))
    assert all(0 < ids.size == len(values) <= most for ids, values in found)
    nothing = np.empty(0, np.int64), np.empty((0, dim), np.float32)
    return tuple(np.concatenate(arrays) for arrays in zip(nothing, *found, strict=True))  # type: ignore[return-value]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(number=st.integers(0, 9), dim=st.integers(1, 4), copied=st.sampled_from([8, 16, 24, 1 << 20]))
def test_the_safetensors_library_reads_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, dim: int, copied: int
) -> None:
    monkeypatch.setattr(table_safetensors, "COPIED_NBYTES", copied)
    path = tmp_path / "items.safetensors"
    path.unlink(missing_ok=True)
    ids, values = rows_of(number, dim)
    write(path, ids, values)
    assert list(tmp_path.iterdir()) == [path]
    found = safetensors.numpy.load_file(path)
    assert found.keys() == {"items.ids", "items.values"}
    assert np.array_equal(found["items.ids"], ids)
    assert np.array_equal(found["items.values"], values)
    with safetensors.safe_open(path, "np") as file:
        said = file.metadata()
    assert {name: said[f"zmqps.{name}"] for name in ("table", "dim", "job", "version", "package")} == {
        **{"table": "items", "dim": str(dim), "job": "default", "version": "41", "package": "0.1.0"}
    }
    raw = path.read_bytes()
    assert (len(raw) - ids.nbytes) % 8 == 0, "ids are not aligned"
    assert all(map(np.array_equal, read(path, dim), (ids, values)))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
@pytest.mark.parametrize(("number", "dim"), [(0, 2), (1, 1), (11, 3), (64, 8)])
def test_pyarrow_reads_what_is_written(tmp_path: Path, suffix: str, number: int, dim: int) -> None:
    pa = pytest.importorskip("pyarrow")
    feather, parquet = pytest.importorskip("pyarrow.feather"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"items{suffix}"
    ids, values = rows_of(number, dim)
    write(path, ids, values)
    assert list(tmp_path.iterdir()) == [path]
    found = parquet.read_table(path) if suffix == ".parquet" else feather.read_table(path)
    assert found.schema.field("id").type == pa.int64()
    kind = found.schema.field("values").type
    assert (kind.list_size, kind.value_type) == (dim, pa.float32())
    assert found.schema.metadata[b"zmqps.table"] == b"items"
    assert found.column("id").to_pylist() == ids.tolist()
    assert found.column("values").to_pylist() == values.tolist()
    if suffix == ".parquet" and number > 3:
        assert parquet.ParquetFile(path).num_row_groups == 3
    assert all(map(np.array_equal, read(path, dim), (ids, values)))


def test_a_format_is_named_or_a_suffix() -> None:
    assert format_of("a/ITEMS.Parquet") == "parquet"
    assert format_of("a.feather") == format_of("a.arrow") == format_of("a.txt", "arrow") == "arrow"
    assert format_of("a.safetensors") == "safetensors"
    with pytest.raises(ConfigurationError, match=r"ends with none of .parquet, .*: name the format"):
        format_of("items.csv")
    with pytest.raises(ConfigurationError, match="format must be one of"):
        format_of("items.parquet", "csv")
    assert [
        is_for_tables(*name) for name in (("a.parquet",), ("a.st",), ("a.parquet", "safetensors"), ("a", "arrow"))
    ] == [*(True, False, False, True)]


def test_without_pyarrow_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "there.arrow").touch()
    with pytest.raises(ConfigurationError, match=r"pip install .*\[arrow\]'"):
        TableFile(tmp_path / "items.parquet")
    with pytest.raises(ConfigurationError, match=r"pip install .*\[arrow\]'"):
        read(tmp_path / "there.arrow", 2)


def test_a_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "items.safetensors"
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="is there already"):
        TableFile(path)
    with TableFile(path, replace=True) as file:
        file.begin(facts(1))
        assert path.read_text() == "mine"
        file.publish()
    assert read(path, 1)[0].size == 0


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".safetensors"])
def test_nothing_is_left_of_a_file_that_was_not_completed(tmp_path: Path, suffix: str) -> None:
    if suffix != ".safetensors":
        pytest.importorskip("pyarrow")
    ids, values = rows_of(5, 2)

    def interrupted() -> None:
        with TableFile(tmp_path / f"items{suffix}") as file:
            file.begin(facts(2))
            file.write(ids, values)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFile, "sync", full)
    with pytest.raises(CheckpointStorageError, match="the disk is full"):
        write(tmp_path / "items.safetensors", *rows_of(3, 2))
    with pytest.raises(CheckpointStorageError), TableFile(tmp_path / "no" / "items.safetensors") as file:
        file.begin(facts(2))
    assert list(tmp_path.iterdir()) == []


# --- files of others ----------------------------------------------------------------------------


def test_there_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no file"):
        read(tmp_path / "items.safetensors", 2)


def save(path: Path, **arrays: Any) -> Path:
    safetensors.numpy.save_file({name.replace("_", "."): array for name, array in arrays.items()}, path)
    return path


def test_arrays_of_other_dtypes_and_names_are_read(tmp_path: Path) -> None:
    ids, values = np.array([1 << 63, 2], np.uint64), np.array([[1.5], [2.5]], np.float64)
    path = save(tmp_path / "a.safetensors", words_ids=ids, words_values=values, w=np.ones(3))
    assert read(path, 1)[0].tolist() == [-(1 << 63), 2]
    assert read(path, 1)[1].tolist() == values.tolist()
    two = save(tmp_path / "b.safetensors", a_ids=ids, a_values=values, b_ids=ids[1:], b_values=values[1:])
    assert read(two, 1, table="b")[0].tolist() == [2]
    with pytest.raises(ConfigurationError, match=r"no arrays items.ids and items.values: it has those of"):
        read(two, 1)
    with pytest.raises(ConfigurationError, match="it has none of any"):
        read(save(tmp_path / "c.safetensors", items_ids=ids), 1)


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ids, values = np.arange(3), np.ones((3, 2), np.float32)
    for number, (arrays, error, said) in enumerate(
        [
            ({"items_ids": ids, "items_values": values[:2]}, ShapeError, "as there are ids"),
            ({"items_ids": ids, "items_values": values[:, :1]}, ShapeError, "for a table of dim 2"),
            ({"items_ids": ids, "items_values": values[:, 0]}, ShapeError, r"\(n, dim\)"),
            ({"items_ids": ids[:, None], "items_values": values}, ShapeError, r"\(n,\)"),
            ({"items_ids": ids.astype(np.int32), "items_values": values}, DtypeError, "I64 or U64"),
            ({"items_ids": ids, "items_values": values.astype(np.int32)}, DtypeError, "F16 or F32 or F64"),
        ]
    ):
        with pytest.raises(error, match=said):
            read(save(tmp_path / f"{number}.safetensors", **arrays), 2)  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_safetensors_file_is_read_or_refused_by_a_documented_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "items.safetensors"
    path.unlink(missing_ok=True)
    write(path, *rows_of(4, 3))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with suppress(CheckpointCorruptError, ConfigurationError, DtypeError, ShapeError):
        read(path, 3)


@pytest.mark.parametrize("says", [[0, 1 << 70], ["0", 8], [0], [8, 0], [-8, 0], None])
def test_a_header_that_cannot_be_true_is_refused(tmp_path: Path, says: Any) -> None:
    header = {"items.ids": {"dtype": "I64", "shape": [1], "data_offsets": says}}
    header["items.values"] = {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}
    text = json.dumps(header).encode()
    path = tmp_path / "items.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(CheckpointCorruptError, match=r"items\.safetensors: .*export the table again"):
        read(path, 2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_of_others_are_read_where_they_fit(tmp_path: Path, suffix: str) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / f"others{suffix}"

    def save(ids: Any, values: Any, **more: Any) -> None:
        columns = pa.table({"id": ids, "values": values, **more})
        if suffix == ".parquet":
            pytest.importorskip("pyarrow.parquet").write_table(columns, path)
        else:
            with pa.ipc.new_file(path, columns.schema) as file:
                file.write_table(columns)

    some = [[float(number), 1.0] for number in range(9)]
    for ids, kind in ((pa.uint64(), pa.list_(pa.float64())), (pa.int16(), pa.large_list(pa.float16()))):
        items = [list(map(np.float16, row)) for row in some]  # which pyarrow 16 wants
        save(pa.array(range(9), ids), pa.array(items, kind), other=pa.array(["x"] * 9))
        found = read(path, 2)
        assert (found[0].tolist(), found[1].tolist()) == (list(range(9)), some)
    save(pa.array([1 << 63], pa.uint64()), pa.array([[1.0, 2.0]]))
    assert read(path, 2)[0].tolist() == [-(1 << 63)]
    for ids, values, error, said in [
        (pa.array(["a"]), pa.array([[1.0, 2.0]]), DtypeError, "expected int64"),
        (pa.array([1]), pa.array([1.0]), DtypeError, r"expected fixed_size_list<float>\[2\]"),
        (pa.array([1]), pa.array([[1, 2]]), DtypeError, "fixed_size_list"),
        (pa.array([1, 2]), pa.array([[1.0, 2.0], [1.0]]), ShapeError, "rows of 1, expected rows of 2"),
        (pa.array([1]), pa.array([[1.0]], pa.list_(pa.float32(), 1)), ShapeError, "rows of 2, the dim of the table"),
        (pa.array([1, None]), pa.array([[1.0, 2.0]] * 2), ConfigurationError, "without an id or a value"),
        (pa.array([1, 2]), pa.array([[1.0, None], [1.0, 2.0]]), ConfigurationError, "without an id or a value"),
        (pa.array([1, 2]), pa.array([None, [1.0, 2.0]]), ConfigurationError, "without an id or a value"),
    ]:
        save(ids, values)
        with pytest.raises(error, match=said):
            read(path, 2)
    columns = pa.table({"id": [1], "vector": [[1.0, 2.0]]})
    with pa.ipc.new_file(tmp_path / "named.arrow", columns.schema) as file:
        file.write_table(columns)
    with pytest.raises(ConfigurationError, match=r"has no column 'values': .*rename the columns"):
        read(tmp_path / "named.arrow", 2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_of_arrow_that_was_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / f"items{suffix}"
    write(path, *rows_of(30, 4))
    raw = path.read_bytes()
    for size in range(0, len(raw), 97):
        path.write_bytes(raw[:size])
        with pytest.raises(CheckpointCorruptError, match=f"no {suffix[1:]} file, or cut short"):
            read(path, 4)
