"""``zmqps checkpoint``, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import zmqps
from tests.checkpoint.saved import Model, job, save
from tests.checkpoint.test_export_compact import chain
from zmqps.checkpoint.find import open_checkpoint
from zmqps.checkpoint.storage import LocalStorage
from zmqps.cli.main import run
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol import exits

SPEC = job(Parameter("w", (4, 3), "float32"), Parameter("b", (3,), "float64"))
PLACEMENT = Placement(KeySpace(SPEC.parameters), ((0, 6, 12), (0, 1, 3)))


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", "240")
    model = Model.random(SPEC)
    return [
        save(LocalStorage(), str(tmp_path), model, PLACEMENT, version=version, state={"epoch": 3})
        for version in (1, 2, 3)
    ]


def test_a_checkpoint_is_shown_and_so_are_all_of_a_directory(paths, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["checkpoint", "show", paths[0]]) == exits.OK
    said = capsys.readouterr().out
    for text in ("default", "1, consistent", "adam", "m, v", "epoch", "15 elements", paths[0]):
        assert text in said
    (Path(paths[1]) / "manifest.json").write_text("{}")
    assert run(["checkpoint", "show", str(tmp_path)]) == exits.OK
    said = capsys.readouterr().out
    assert said.count("looks whole") == 2
    assert "the manifest is not of zmqps" in said
    assert "3, consistent" in said


def test_each_is_verified_and_one_that_is_damaged_is_an_error(paths, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["checkpoint", "verify", str(tmp_path)]) == exits.OK
    assert capsys.readouterr().out.count(" is whole: version ") == 3
    file = next(Path(paths[2]).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    assert run(["checkpoint", "verify", str(tmp_path)]) == exits.FAILED
    out, err = capsys.readouterr()
    assert out.count(" is whole: version ") == 2
    assert f"are not what was written; {paths[1]} looks whole, of version 2" in err
    assert run(["checkpoint", "verify", paths[2]]) == exits.FAILED
    assert run(["checkpoint", "verify", paths[1]]) == exits.OK


def test_one_file_is_exported(paths, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    safetensors = pytest.importorskip("safetensors.numpy")
    file = str(tmp_path / "model.safetensors")
    assert run(["checkpoint", "export", str(tmp_path), file]) == exits.OK
    assert f"wrote {file}: version 3 of {paths[2]}" in capsys.readouterr().out
    assert sorted(safetensors.load_file(file)) == ["b", "w"]
    assert run(["checkpoint", "export", paths[0], file]) == exits.USAGE
    assert "is there already; name another file" in capsys.readouterr().err
    assert run(["checkpoint", "export", paths[0], file, "--force", "--optimizer"]) == exits.OK
    assert len(safetensors.load_file(file)) == 6


def test_a_file_of_a_table_is_exported(paths, tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    """The checkpoint here has no table: see tests/checkpoint/test_rows.py for those that have."""
    asked = []
    monkeypatch.setattr(
        zmqps.checkpoint, "export_table", lambda *args, **options: asked.append((args[1:], options)) or 7
    )
    for file, *options in (
        ("items.parquet",),
        ("items.FEATHER", "--force"),
        ("items", "--format=arrow"),
        ("items.safetensors", "--table=items"),
    ):
        assert run(["checkpoint", "export", str(tmp_path), file, *options]) == exits.OK
        assert f"wrote {file}: version 3 of {paths[2]}, 7 rows" in capsys.readouterr().out
    assert asked == [
        (("items.parquet", None), {"format": None, "replace": False}),
        (("items.FEATHER", None), {"format": None, "replace": True}),
        (("items", None), {"format": "arrow", "replace": False}),
        (("items.safetensors", "items"), {"format": None, "replace": False}),
    ]
    assert run(["checkpoint", "export", paths[0], "items.parquet", "--optimizer"]) == exits.USAGE
    assert "slots of a sparse table stay in the checkpoint" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(["checkpoint", "export", paths[0], str(tmp_path / "items.safetensors"), "--table=items"]) != exits.OK
    assert "its sparse tables are none" in capsys.readouterr().err


def rows_of(path: str) -> dict[int, bytes]:
    found = zmqps.load(path)
    return {id_: row.tobytes() for id_, row in zip(found["items.ids"].tolist(), found["items.values"], strict=True)}


def test_a_chain_is_shown_verified_exported_and_compacted(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "240")
    _, paths = chain(LocalStorage(), str(tmp_path))
    before = rows_of(paths[2])
    assert run(["checkpoint", "show", str(tmp_path)]) == exits.OK
    assert f"looks whole, builds upon {Path(paths[1]).name}" in capsys.readouterr().out
    assert run(["checkpoint", "verify", str(tmp_path)]) == exits.OK
    assert run(["checkpoint", "export", str(tmp_path), str(tmp_path / "one.safetensors")]) == exits.OK
    assert run(["checkpoint", "prune", str(tmp_path), "--keep", "1"]) == exits.OK
    assert all(Path(path).is_dir() for path in paths)
    capsys.readouterr()
    assert run(["checkpoint", "compact", str(tmp_path)]) == exits.OK
    said = capsys.readouterr().out
    whole = open_checkpoint(str(tmp_path))
    assert said == f"wrote {whole.path}: version 9 of {paths[2]}\n"
    assert whole.base is None
    assert rows_of(whole.path) == before
    assert run(["checkpoint", "prune", str(tmp_path), "--keep", "1"]) == exits.OK
    assert [str(path) for path in (tmp_path / "job").iterdir()] == [whole.path]
    assert run(["checkpoint", "compact", str(tmp_path)]) == exits.OK
    assert "builds upon no other" in capsys.readouterr().out


def test_a_chain_that_was_copied_elsewhere_is_not_compacted_into_another_directory(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    chain(LocalStorage(), str(tmp_path / "here"))
    (tmp_path / "here" / "job").rename(tmp_path / "there")
    assert run(["checkpoint", "compact", str(tmp_path / "there")]) == exits.USAGE
    assert "is not a directory of checkpoints of the job 'job', by its name" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "there"]


def test_all_but_the_latest_are_removed(paths, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["checkpoint", "prune", str(tmp_path), "--keep", "2"]) == exits.OK
    said = capsys.readouterr().out
    assert f"removed {paths[0]}\n" in said
    assert f"2 checkpoints left, the latest {paths[2]}" in said
    assert sorted(str(path) for path in (tmp_path / "default").iterdir()) == paths[1:]


@pytest.mark.parametrize("command", ["show", "verify", "prune --keep=1", "export x.safetensors"])
def test_a_path_without_checkpoints_is_an_error_in_one_line(command: str, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    name, *rest = command.split()
    assert run(["checkpoint", name, str(tmp_path), *rest]) == exits.FAILED
    said = capsys.readouterr().err
    assert "there is no checkpoint in it; name the directory that --checkpoint named" in said
    assert said.count("\n") == 1


def test_the_group_alone_shows_its_commands(capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["checkpoint", "--help"]) == exits.OK
    assert "verify" in capsys.readouterr().out


def test_the_group_alone_asks_the_cluster_for_a_checkpoint(capsys) -> None:  # type: ignore[no-untyped-def]
    assert run(["checkpoint", "--coordinator", "tcp://127.0.0.1:1", "--timeout", "0.2"]) == exits.COORDINATOR_LOST
    assert "checkpoint timed out" in capsys.readouterr().err
