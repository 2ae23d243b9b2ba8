"""A journal that is not what was written: the exact state or `JournalError`, never a new cluster nor an older state."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pace import allow
from zmqps.core.protocol.events import Record
from zmqps.errors import JournalError
from zmqps.nodes import journal as journals
from zmqps.nodes import journal_mark
from zmqps.nodes.journal import FILE, LOCK, Journal
from zmqps.nodes.journal_mark import MARK

WAL = f"{FILE}-wal"
#: What is damaged: a file of a journal whose log holds most of it, or of one with an empty log.
PLACES = [(FILE, "written"), (WAL, "written"), (MARK, "written"), (FILE, "settled"), (MARK, "settled")]
#: What is written: one transaction each; the second is forced to the disk.
WRITES = [
    [Record("identity", {"incarnation": b"c" * 16})],
    [Record("spec/default", [1, "w"]), Record("step/default", [0])],
    [Record("step/default", [1]), Record("member/a", ["a", 1.5])],
    [Record("member/a", None)],
    [Record("step/default", [2, bytes(3000)])],
    [Record("step/default", [3])],
]
#: Killed without a word, with what it has written after its first arguments copied there.
WRITER = """
import os, shutil, signal, sys
from zmqps.nodes.journal import Journal
from tests.nodes.test_journal_damage import WRITES
journal = Journal(sys.argv[1])
for number, records in enumerate(WRITES):
    journal.write(records)
    shutil.copytree(sys.argv[1], f"{sys.argv[1]}-{number}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def state_after(num_writes: int) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for record in (record for records in WRITES[:num_writes] for record in records):
        state[record.key] = record.data
    return {key: data for key, data in state.items() if data is not None}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a killed coordinator's journal is; one of `n` transactions before is beside it, as ``-n``."""
    place = tmp_path_factory.mktemp("written") / "j"
    assert subprocess.run([sys.executable, "-c", WRITER, place], timeout=allow(60)).returncode < 0
    return place


@pytest.fixture(scope="module")
def settled(written: Path) -> Path:
    """Return the same journal after another life, which has left all of it in the one file."""
    place = written.with_name("settled")
    shutil.copytree(written, place)
    read(place)
    return place


def read(place: Path) -> dict[str, Any]:
    with Journal(place) as journal:
        return journal.read()


def files(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in place.iterdir() if file.name != LOCK}


def damaged(written: Path, place: Path, **names: Callable[[bytes], bytes | None]) -> Path:
    """Return a copy of a journal with some of its files changed; None: without it."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(written, place)
    for name, change in names.items():
        data = change((place / name).read_bytes())
        (place / name).unlink() if data is None else (place / name).write_bytes(data)
    return place


def is_exact_or_refused(place: Path) -> bool:
    """Whether a journal is the exact state; else it was refused, and is what it was."""
    before = files(place)
    try:
        found = read(place)
    except JournalError as error:
        refusal = str(error)
    else:
        assert found == state_after(len(WRITES))
        return True
    assert "good copy" in refusal or "another directory" in refusal or "has format" in refusal, "what to do next"
    assert files(place) == before, "what is damaged is left as it is: a part may yet be put right"
    return False


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_what_a_killed_coordinator_wrote_is_all_there(written: Path, tmp_path: Path) -> None:
    assert is_exact_or_refused(damaged(written, tmp_path / "j"))
    assert is_exact_or_refused(tmp_path / "j"), "and once more"


@pytest.mark.parametrize("name", [FILE, WAL, MARK])
def test_one_that_lacks_a_file_is_refused(written: Path, tmp_path: Path, name: str) -> None:
    assert not is_exact_or_refused(damaged(written, tmp_path / "j", **{name: lambda _: None}))


def test_one_that_lacks_its_lock_is_whole(written: Path, tmp_path: Path) -> None:
    assert is_exact_or_refused(damaged(written, tmp_path / "j", **{LOCK: lambda _: None}))


@pytest.mark.parametrize("number", range(len(WRITES) - 1))
@pytest.mark.parametrize("names", [(FILE,), (WAL,), (FILE, WAL), (MARK,)], ids="+".join)
def test_an_older_copy_of_a_part_is_refused(written: Path, tmp_path: Path, number: int, names: tuple[str, ...]) -> None:
    older = files(written.with_name(f"j-{number}"))
    changes = {name: lambda _, data=older[name]: data for name in names if older[name] != files(written)[name]}
    is_exact = is_exact_or_refused(damaged(written, tmp_path / "j", **changes))
    assert is_exact == (not changes or (names == (MARK,) and number == len(WRITES) - 2)), "as a kill may leave it"


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE state RENAME COLUMN number TO numbes", "UPDATE state SET key = CAST(x'ff' || key AS TEXT)"],
    ids=["another column", "keys that are not UTF-8"],
)
def test_one_whose_tables_are_not_as_they_were_made_is_damaged(settled: Path, tmp_path: Path, change: str) -> None:
    place = damaged(settled, tmp_path / "j")
    with contextlib.closing(sqlite3.connect(place / FILE)) as db, db:
        db.execute(change)
    assert not is_exact_or_refused(place)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), st.floats(0, 1, exclude_max=True))
def test_a_bit_that_is_not_what_was_written_is_noticed_or_harmless(
    written: Path, settled: Path, tmp_path: Path, chosen: tuple[str, str], where: float
) -> None:
    name, journal = chosen[0], {"written": written, "settled": settled}[chosen[1]]
    bit = int(where * 8 * (journal / name).stat().st_size)
    is_exact_or_refused(damaged(journal, tmp_path / "j", **{name: lambda data: flipped(data, bit)}))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_short_is_noticed_or_harmless(
    written: Path, settled: Path, tmp_path: Path, chosen: tuple[str, str], where: float
) -> None:
    name, journal = chosen[0], {"written": written, "settled": settled}[chosen[1]]
    length = int(where * (journal / name).stat().st_size)
    is_exact_or_refused(damaged(journal, tmp_path / "j", **{name: lambda data: data[:length]}))


@pytest.mark.parametrize("frame", range(4))
def test_a_bit_in_the_log_hides_no_transaction(written: Path, tmp_path: Path, frame: int) -> None:
    bit = 8 * (32 + frame * (24 + 4096) + 2000)
    assert not is_exact_or_refused(damaged(written, tmp_path / "j", **{WAL: lambda data: flipped(data, bit)}))


def test_one_of_another_cluster_that_is_as_long_is_refused(written: Path, tmp_path: Path) -> None:
    with Journal(tmp_path / "other") as journal:
        for records in WRITES:
            journal.write(records)
    mark = (tmp_path / "other" / MARK).read_bytes()
    assert not is_exact_or_refused(damaged(written, tmp_path / "j", **{MARK: lambda _: mark}))


# --- a process that is killed ----------------------------------------------------------------------


def pictures(place: Path, program: Callable[[], None]) -> Iterator[Path]:
    """Run a program; yield what a SIGKILL before each line of the journal's code would leave, if it is not the same."""
    ours = (journals.__file__, journal_mark.__file__)
    found: list[Path] = []
    last: dict[str, bytes] = {}

    def look(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in ours:
            return None
        nonlocal last
        if event in ("line", "return") and place.exists() and (now := files(place)) != last:
            last = now
            copy = place.with_name(f"killed-{program.__name__}-{len(found)}")
            shutil.copytree(place, copy)
            found.append(copy)
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        program()
    finally:
        sys.settrace(before)
    return iter(found)


def test_one_that_was_killed_at_any_line_has_what_was_acknowledged(tmp_path: Path) -> None:
    states = [state_after(number) for number in range(len(WRITES) + 1)]
    acknowledged: list[tuple[int, int]] = []  # pictures until then, of which the last is of that moment; writes

    def program() -> None:
        with Journal(tmp_path / "j") as journal:
            for number, records in enumerate(WRITES):
                journal.write(records)
                acknowledged.append((sum(1 for _ in tmp_path.glob("killed-*")), number + 1))

    for number, place in enumerate(pictures(tmp_path / "j", program)):
        least = max((writes for until, writes in acknowledged if until - 1 <= number), default=0)
        assert read(place) in states[least : least + 2], place
        shutil.rmtree(place)


def test_one_that_was_killed_at_any_line_of_its_end_is_whole_or_a_new_one(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for records in WRITES:
            journal.write(records)
        for place in pictures(tmp_path / "j", journal.retire):
            assert read(place) in (state_after(len(WRITES)), {})
    for place in pictures(tmp_path / "j", lambda: journals.forget_journal(tmp_path / "j")):
        assert read(place) == {}


def test_one_that_was_killed_while_it_was_opened_is_whole(written: Path, tmp_path: Path) -> None:
    place = damaged(written, tmp_path / "j")
    for picture in pictures(place, lambda: read(place) and None):
        assert read(picture) == state_after(len(WRITES))


def test_a_write_of_the_mark_that_is_cut_short_is_not_damage(written: Path, tmp_path: Path) -> None:
    old, new = ((written.with_name(f"j-{number}") / MARK).read_bytes() for number in (4, 5))
    for length in (*range(0, 120, 11), *range(4090, len(new), 11)):
        torn = new[:length] + old[length:]
        assert is_exact_or_refused(damaged(written, tmp_path / "j", **{MARK: lambda _, data=torn: data}))


# --- a host that loses its power ---------------------------------------------------------------------


@pytest.fixture
def another_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_mark, "boot", lambda: "after a loss of power")


@pytest.mark.usefixtures("another_start")
def test_after_a_loss_of_power_the_end_of_the_log_may_be_missing_and_that_is_said(
    written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lasting, whole = ((place / WAL).stat().st_size for place in (written.with_name("j-1"), written))
    states = [state_after(number) for number in range(2, len(WRITES) + 1)]
    found = []
    for length in (*range(lasting, whole, 411), whole):
        caplog.clear()
        state = read(damaged(written, tmp_path / "j", **{WAL: lambda data, length=length: data[:length]}))
        found.append(states.index(state))
        assert ("lacks its last transactions" in caplog.text) == (state != states[-1])
        assert read(tmp_path / "j") == state, "and goes on from there"
    assert found == sorted(found)
    assert set(found) == set(range(len(states)))


@pytest.mark.usefixtures("another_start")
def test_after_a_loss_of_power_what_was_on_the_disk_may_not_be_missing(written: Path, tmp_path: Path) -> None:
    for length in range(0, (written.with_name("j-1") / WAL).stat().st_size, 1997):
        assert not is_exact_or_refused(damaged(written, tmp_path / "j", **{WAL: lambda data, n=length: data[:n]}))


def test_what_goes_on_after_a_loss_of_power_is_a_journal_like_others(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = damaged(written, tmp_path / "j", **{WAL: lambda data: data[: len(data) - 1]})
    with monkeypatch.context() as patch:
        patch.setattr(journal_mark, "boot", lambda: "after a loss of power")
        with Journal(place) as journal:
            assert journal.read() == state_after(len(WRITES) - 1)
            journal.write([Record("more", 1)])
        assert read(place) == state_after(len(WRITES) - 1) | {"more": 1}
