"""Memory that one process lends and another reads in place: arenas, loans, and what happens when one side goes."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

from tests.net.lane.test_shm import RING, SERVER, WORKER, Pair, with_pair
from tests.pace import allow
from zmqps.core.protocol.arrays import lender_of
from zmqps.net.lane import arena as arena_module
from zmqps.net.lane import lending
from zmqps.net.lane.arena import MIN_NBYTES, ArenaError, Arenas, Description, attach
from zmqps.net.lane.ring import RingError
from zmqps.net.lane.segment import Segment

SIZE = 2 * MIN_NBYTES // 4

pytestmark = pytest.mark.usefixtures("on_one_host")


@pytest.fixture
def on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.net.lane.test_shm import Route, shm

    monkeypatch.setattr(shm, "choose", lambda advertised, transport: Route("ipc://@here", True))


def new_values(arenas: Arenas) -> np.ndarray[Any, Any]:
    values = arenas.empty(SIZE, np.dtype(np.float32))
    values[:] = np.arange(SIZE)
    return values


def description_of(arenas: Arenas, values: np.ndarray[Any, Any]) -> Description:
    found = arenas.find(values)
    assert found is not None
    return found[0].description


# --- arenas -------------------------------------------------------------------------------------


def test_another_process_reads_what_is_written_and_cannot_write() -> None:
    arenas = Arenas()
    values = new_values(arenas)
    program = f"""if True:
        import numpy as np
        from zmqps.net.lane.arena import Description, attach
        memory = attach(Description(*{tuple(description_of(arenas, values))!r})).data
        assert memory.nbytes == {values.nbytes} and not memory.flags.writeable
        print(memory.view(np.float32)[[0, 1, -1]].tolist())"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=allow(60))
    assert out.stdout.strip() == str([0.0, 1.0, SIZE - 1.0])


def test_an_arena_ends_with_its_last_array_and_leaves_no_descriptor() -> None:
    gc.collect()
    before = psutil.Process().num_fds()
    arenas = Arenas()
    values = new_values(arenas)
    part = values[5:].reshape(-1, 1)
    del values
    assert arenas.nbytes == 4 * SIZE
    assert arenas.find(np.ascontiguousarray(part.reshape(-1))) is not None
    memory = attach(description_of(arenas, part.reshape(-1))).data
    del part
    assert arenas.nbytes == 0
    assert memory.view(np.float32)[7] == 7
    del memory
    assert psutil.Process().num_fds() <= before


def test_an_arena_that_is_parted_with_is_left_to_others_as_it_is() -> None:
    arenas = Arenas()
    values = new_values(arenas)
    seen = attach(description_of(arenas, values)).data.view(np.float32)
    values[0] = 5.0
    assert seen[0] == 5.0
    arenas.part(values[1:])  # wherever in it
    values[:] = -1.0
    assert (seen[0], *seen[1:]) == (5.0, *range(1, SIZE))
    assert (values == -1.0).all()
    assert arenas.find(values) is None
    assert arenas.nbytes == 0
    arenas.part(values)  # again, and of memory that is no arena
    arenas.part(np.zeros(SIZE))


def test_memory_that_cannot_be_parted_with_stays_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas = Arenas()
    values = new_values(arenas)
    found = arenas.find(values)
    assert found is not None
    monkeypatch.setattr(found[0], "description", found[0].description._replace(fd=-1))
    with pytest.raises(OSError, match="cannot part"):
        arenas.part(values)
    assert arenas.find(values) is not None
    assert (values == np.arange(SIZE)).all()


def test_small_arrays_and_systems_that_share_no_memory_get_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas = Arenas()
    assert arenas.find(arenas.empty(3, np.dtype(np.float32))) is None
    monkeypatch.delattr(os, "memfd_create")
    values = new_values(arenas)
    assert values[-1] == SIZE - 1
    assert arenas.find(values) is None
    assert arenas.nbytes == 0


def test_where_memory_is_not_promised_twice_an_arena_has_all_of_its_own_or_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "overcommit").write_text("2\n")
    monkeypatch.setattr(arena_module, "_OVERCOMMIT", tmp_path / "overcommit")
    arenas = Arenas()
    values = arenas.empty(SIZE, np.dtype(np.float32))
    assert os.fstat(description_of(arenas, values).fd).st_blocks * 512 >= values.nbytes

    def full(*_: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert arenas.find(other := new_values(arenas)) is None
    assert other[-1] == SIZE - 1


def a_plain_file(description: Description, tmp_path: Any) -> Description:
    path = tmp_path / "file"
    path.write_bytes(bytes(arena_module._total(description.nbytes) - 16) + description.key)
    path.chmod(0o600)
    return description._replace(fd=os.open(path, os.O_RDWR))


def an_open_file(description: Description, tmp_path: Any) -> Description:
    fd = os.memfd_create("zmqps", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, arena_module._total(description.nbytes))
    os.fchmod(fd, 0o644)
    return description._replace(fd=fd)


def a_pipe(description: Description, tmp_path: Any) -> Description:
    return description._replace(fd=os.pipe()[0])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda description, _: description._replace(pid=0),
        lambda description, _: description._replace(fd=1 << 20),
        lambda description, _: description._replace(nbytes=0),
        lambda description, _: description._replace(nbytes=1 << 40),
        lambda description, _: description._replace(key=bytes(16)),
        a_plain_file,
        an_open_file,
        a_pipe,
    ],
)
def test_what_is_no_arena_is_refused(spoil: Callable[[Description, Any], Description], tmp_path: Any) -> None:
    arenas = Arenas()
    values = new_values(arenas)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ArenaError):
        attach(spoil(description_of(arenas, values), tmp_path))
    for fd in set(os.listdir("/proc/self/fd")) - before:
        try:
            os.close(int(fd))
        except OSError:  # of the listing itself
            pass


def test_an_arena_cannot_shrink_under_those_who_read_it() -> None:
    arenas = Arenas()
    fd = description_of(arenas, values := new_values(arenas)).fd
    with pytest.raises(PermissionError):
        os.ftruncate(fd, mmap.PAGESIZE)
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    assert values.size == SIZE


# --- in a lane ----------------------------------------------------------------------------------


def known(pair: Pair, values: np.ndarray[Any, Any]) -> None:
    """Let the worker know the server's arena, and forget the message that did it."""
    pair.server.send(WORKER, [b"first", values], [[]])
    pair.inbox.clear()


def test_frames_in_an_arena_stay_where_they_are_once_the_other_side_knows_it() -> None:
    def scenario(pair: Pair) -> None:
        values, seen, readers = new_values(pair.server.arenas), [], []  # type: ignore[var-annotated]
        pair.deliver = lambda peer, frames: seen.append(frames[1])
        for _ in range(2):
            pair.server.send(WORKER, [b"values", values], [readers])
        assert pair.server.counters == {"lane_frames": 1, "lane_references": 1, "lane_overflows": 0}
        assert [bytes(frame) for frame in seen] == [values.tobytes()] * 2
        values[0] = 77  # a test of who owns it; a shard does not write to what is lent
        assert [np.frombuffer(frame, np.float32)[0] for frame in seen] == [0, 77]
        assert [reader.done for reader in readers] == [False]
        array: Any = np.frombuffer(seen.pop(), np.float32)[3:]
        assert lender_of(array) is not None
        assert pair.worker._lanes[SERVER].segment.borrower.held == {1: values.nbytes}
        assert not readers[0].done
        del array
        assert readers[0].done
        assert pair.worker._lanes[SERVER].segment.borrower.held == {}

    with_pair(scenario)


def test_what_a_worker_pushes_is_read_in_its_arena_without_a_loan() -> None:
    def scenario(pair: Pair) -> None:
        gradients = new_values(pair.worker.arenas)
        for _ in range(3):
            pair.worker.send(SERVER, [b"push", gradients[100:], b"small"], ())
        assert pair.inbox == [[b"push", gradients[100:].tobytes(), b"small"]] * 3
        assert pair.worker.counters["lane_references"] == 2
        assert pair.server._lanes[WORKER].segment.borrower.held == {}

    with_pair(scenario)


def test_a_loan_keeps_only_what_is_lent_and_nothing_that_was_copied() -> None:
    def scenario(pair: Pair) -> None:
        values, spare = new_values(pair.server.arenas), np.zeros(SIZE, np.float32)
        known(pair, values)
        lent, copied, overflown = [], [], []  # type: ignore[var-annotated]
        seen: list[Any] = []
        pair.deliver = lambda peer, frames: seen.append(frames)
        large = np.zeros(9 * SIZE, np.float32)
        pair.server.send(WORKER, [b"values", spare, values, large], [copied, lent, overflown])
        assert [[reader.done for reader in readers] for readers in (copied, lent)] == [[], [False]]
        assert pair.wires[1].readers[-1] == [overflown], "ZeroMQ reads that one"
        seen.clear()
        assert lent[0].done

    with_pair(scenario, ring_nbytes=4 * SIZE * 8)


def test_a_message_that_is_not_sent_takes_no_loan() -> None:
    def scenario(pair: Pair) -> None:
        values, readers = new_values(pair.server.arenas), []  # type: ignore[var-annotated]
        known(pair, values)
        pair.wires[1].up = False
        assert not pair.server.send(WORKER, [b"values", values], [readers])
        assert readers == []
        assert pair.server._lanes[WORKER].segment.lender.num_loans == 0

    with_pair(scenario)


def test_loans_of_messages_that_are_lost_come_back_with_the_next() -> None:
    def scenario(pair: Pair) -> None:
        values, readers = new_values(pair.server.arenas), []  # type: ignore[var-annotated]
        known(pair, values)
        deliver, pair.wires[1].other.deliver = pair.wires[1].other.deliver, lambda *_: None
        for _ in range(3):
            pair.server.send(WORKER, [b"values", values], [readers])
        pair.wires[1].other.deliver = deliver
        assert [reader.done for reader in readers] == [False] * 3
        pair.server.send(WORKER, [b"values", values], [[]])
        assert [reader.done for reader in readers] == [True] * 3

    with_pair(scenario)


def test_more_loans_than_there_can_be_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(pair: Pair) -> None:
        values, seen = new_values(pair.server.arenas), []  # type: ignore[var-annotated]
        known(pair, values)
        pair.server._lanes[WORKER].segment.lender._free[:] = [7, 9]
        pair.deliver = lambda peer, frames: seen.append(frames[1])
        for _ in range(3):
            pair.server.send(WORKER, [b"values", values], [[]])
        assert pair.server.counters["lane_references"] == 2
        assert [bytes(frame) for frame in seen] == [values.tobytes()] * 3
        seen.clear()
        pair.server.send(WORKER, [b"values", values], [[]])
        assert pair.server.counters["lane_references"] == 3

    with_pair(scenario, ring_nbytes=4 * SIZE * 8)


def test_memory_that_the_other_side_cannot_map_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Description] = []

    def refuse(description: Description) -> Any:
        refused.append(description)
        raise ArenaError("not today")

    monkeypatch.setattr(lending, "attach", refuse)

    def scenario(pair: Pair) -> None:
        values = new_values(pair.server.arenas)
        for _ in range(3):
            pair.server.send(WORKER, [b"values", values], [[]])
        assert pair.inbox == [[b"values", values.tobytes()]] * 3
        assert pair.server.counters["lane_references"] == 0
        assert refused == [description_of(pair.server.arenas, values)], "it was asked once, and said so"

    with_pair(scenario, ring_nbytes=4 * SIZE * 8)


def test_announcements_of_arenas_that_are_gone_make_room_for_others() -> None:
    def scenario(pair: Pair) -> None:
        for number in range(2 * lending.MAX_ARENAS):
            values = new_values(pair.server.arenas)
            values[0] = number
            known(pair, values)
            pair.server.send(WORKER, [b"values", values], [[]])
            assert pair.inbox == [[b"values", values.tobytes()]]
        assert pair.server.counters["lane_references"] == 2 * lending.MAX_ARENAS
        many = [new_values(pair.server.arenas) for _ in range(lending.MAX_ARENAS + 2)]
        for values in many * 2:
            known(pair, values)
        assert pair.server.counters["lane_references"] == 3 * lending.MAX_ARENAS

    with_pair(scenario, ring_nbytes=4 * SIZE * 8)


def test_an_arena_that_stays_does_not_keep_those_after_it_from_being_announced() -> None:
    def scenario(pair: Pair) -> None:
        known(pair, stays := new_values(pair.server.arenas))
        for _ in range(2 * lending.MAX_ARENAS):
            values = new_values(pair.server.arenas)
            known(pair, values)
            pair.server.send(WORKER, [b"values", values], [[]])
            pair.server.send(WORKER, [b"values", stays], [[]])
        assert pair.server.counters["lane_references"] == 4 * lending.MAX_ARENAS

    with_pair(scenario, ring_nbytes=4 * SIZE * 8)


def test_an_arena_that_is_gone_is_let_go_by_the_other_side_once_no_loan_can_be_of_it() -> None:
    def scenario(pair: Pair) -> None:
        first, second = new_values(pair.server.arenas), new_values(pair.server.arenas)
        known(pair, first)
        known(pair, second)
        mapped = pair.lane.segment.borrower._memories
        kept: list[Any] = []
        pair.deliver = lambda peer, frames: kept.extend(frames[1:])
        assert pair.server.send(WORKER, [b"h", first], ([],))
        del first
        for _ in range(3):
            pair.server._reap()
            assert pair.server.send(WORKER, [b"h"], ())
            assert len(mapped) == 2, "the worker looks at it, and might have it yet to take"
        kept.clear()
        for _ in range(2):
            pair.server._reap()
        pair.deliver = lambda peer, frames: None
        assert pair.server.send(WORKER, [b"h"], ())
        assert len(mapped) == 1, "else what a server has freed would stay in memory"
        number = pair.server._lanes[WORKER].segment.lender.refer(pair.server.arenas.find(second)[0])
        assert list(mapped) == [number]
        third = new_values(pair.server.arenas)
        known(pair, third)
        assert len(mapped) == 2

    with_pair(scenario)


def test_a_lane_whose_place_another_took_is_kept_while_somebody_reads_what_it_lent() -> None:
    def scenario(pair: Pair) -> None:
        values, readers, seen = new_values(pair.server.arenas), [], []  # type: ignore[var-annotated]
        known(pair, values)
        pair.deliver = lambda peer, frames: seen.append(frames[1])
        pair.server.send(WORKER, [b"values", values], [readers])
        pair.worker.connect(SERVER, "ipc://@here")  # anew: another lane
        pair.shake_hands()
        pair.server._reap()
        assert not readers[0].done
        assert len(pair.server._retired) == 1
        assert bytes(seen[0]) == values.tobytes()
        seen.clear()
        assert readers[0].done
        pair.server._reap()
        assert pair.server._retired == []

    with_pair(scenario)


def test_what_a_closed_worker_still_looks_at_stays_as_it_is() -> None:
    def scenario(pair: Pair) -> None:
        values, readers, seen = new_values(pair.server.arenas), [], []  # type: ignore[var-annotated]
        known(pair, values)
        pair.deliver = lambda peer, frames: seen.append(frames[1])
        pair.server.send(WORKER, [b"values", values], [readers])
        pair.worker.close(0)
        pair.server._reap()
        assert not pair.server._lanes[WORKER].segment.orphaned
        assert not readers[0].done
        seen.clear()
        assert readers[0].done
        gc.collect()
        pair.server._reap()
        assert pair.server._lanes == {}

    with_pair(scenario)


def test_a_loan_to_a_worker_that_was_killed_keeps_nothing_of_the_lane() -> None:
    created = Segment.create(RING)
    attached = Segment.attach(created.name)
    loan = attached.lender.lend()  # a slice that nobody asks for any more has it in its list for ever
    assert loan is not None
    num_descriptors = psutil.Process().num_fds()
    attached.lender.close()
    attached.close()
    del attached
    assert psutil.Process().num_fds() == num_descriptors - 2, "the file's, and that of its mapping"
    assert loan.done
    created.close()


def test_a_forked_child_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    created = Segment.create(RING)
    attached = Segment.attach(created.name)
    loans = [attached.lender.lend() for _ in range(2)]
    pid = os.getpid()
    for loan, here in zip(loans, (pid, pid + 1), strict=True):
        assert loan is not None
        hold = lending.Hold(created.borrower, loan.slot, loan.number, 1)
        monkeypatch.setattr(os, "getpid", lambda here=here: here)
        del hold
        monkeypatch.undo()
        assert loan.done == (here == pid)
    created.close()
    attached.close()


def test_loans_that_nobody_made_are_refused() -> None:
    created = Segment.create(RING)
    attached = Segment.attach(created.name)
    for slot, number in ((lending.MAX_LOANS, 1), (0, 1), (1 << 31, 1 << 63)):
        with pytest.raises(RingError, match="loan"):
            created.borrower.check_loan(slot, number, [])
    loan = attached.lender.lend()
    assert loan is not None
    created.borrower.take(loan.slot, loan.number, [])
    assert loan.done
    with pytest.raises(RingError, match="loan"):
        created.borrower.check_loan(loan.slot, loan.number, [])
    for frame in ((1, 0, 1), (99, 0, 1)):
        with pytest.raises(RingError, match="arena"):
            created.borrower.check_loan(0, 0, [frame])
    created.close()
    attached.close()
