"""Whatever a peer says about rows, a server answers it as documented, and what is refused changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.cluster import ASSIGN, EPOCH, PARAMETERS, ready_server, sends, ticketed
from zmqps import optim
from zmqps.codecs import parse
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.encoding import CODING
from zmqps.core.protocol.events import COORDINATOR, Received
from zmqps.core.protocol.messages import Ack, Commit, Error, Message, PullRows, PushRows, ScanRows, Values
from zmqps.core.protocol.messages.rows import SCANNED
from zmqps.core.protocol.terms import SET
from zmqps.core.protocol.wire import encode
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.tables.rows import rows_in
from zmqps.errors import BY_CODE, NonFiniteGradientError
from zmqps.rows.initial import Initial

Array = np.ndarray[Any, np.dtype[Any]]

WHO, PEER = b"w" * 16, b"@worker"
POOL = np.array([0, 1, -1, (1 << 63) - 1, -(1 << 63), 77, 1 << 40], np.int64)
BEGIN = Initial("constant", 1.0).to_wire()
TABLES = (
    TableSpec(name="narrow", dim=1, optimizer=optim.sgd(1.0).to_wire(), initial=BEGIN),
    TableSpec(name="wide", dim=300, optimizer=optim.adam(0.1).to_wire(), initial=BEGIN),
    TableSpec(
        name="small", dim=3, optimizer=optim.adagrad(0.1).to_wire(), initial=BEGIN, capacity_nbytes=160,
        when_full="evict", admit=2,
    ),
    TableSpec(name="young", dim=3, optimizer=optim.rowwise_adagrad(0.1).to_wire(), initial=BEGIN, expire_steps=2),
)  # fmt: skip


def job_of(mode: str, nonfinite: str = "reject") -> tuple[JobSpec, Placement]:
    job = JobSpec(
        parameters=PARAMETERS, optimizer=optim.sgd(0.5).to_wire(), mode=mode, nonfinite=nonfinite,
        tables=TABLES,
    )  # fmt: skip
    return job, Placement.balance(KeySpace.of(job), 1, 64)


def server_of(mode: str, nonfinite: str = "reject") -> tuple[ServerKernel, int]:
    """Return a server with tables to which a worker is connected, and the number of the first one."""
    job, placement = job_of(mode, nonfinite)
    machine = ready_server(replace(ASSIGN, job=job.to_wire(), placement=placement.to_wire()), placement)
    machine.handle(Received(PEER, ticketed("worker", WHO)), 0.0)
    return machine, len(placement.slices[0])


@dataclass
class State:
    """All that a server has of tables."""

    versions: list[tuple[int, int, int]]
    rows: list[bytes]
    staged: int

    @classmethod
    def of(cls, machine: ServerKernel) -> State:
        rows = rows_in(machine.tenants[EPOCH].built())
        found = []
        for table in rows.tables:
            live = np.flatnonzero(table.store.live[: table.store.end])
            kept = table.kept(live[np.argsort(table.store.ids[live])])
            found.append(b"".join(array.tobytes() for array in kept.arrays))
        versions = [(table.version, table.steps, len(table)) for table in rows.tables]
        return cls(versions, found, rows.stage_nbytes)


@st.composite
def split(draw: st.DrawFn, data: bytes) -> tuple[bytes, ...]:
    """Return bytes in pieces."""
    step = draw(st.sampled_from([4, 4, 4, 1]))  # an element is in one piece, or not
    cuts = sorted(step * cut for cut in draw(st.lists(st.integers(0, len(data) // step), max_size=3)))
    pieces = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return tuple(piece for piece in pieces if piece)


IDS = st.lists(st.sampled_from(POOL.tolist()), max_size=6, unique=True)
NUMBERS = st.lists(st.sampled_from([0.0, 1.0, -2.5, 1e-30, 3e38]), min_size=1, max_size=3)
CODECS = st.sampled_from(["raw", "raw", "bf16", "fp16", "int8"])
#: What may be wrong with a message, by its field.
WRONG: dict[str, list[Any]] = {
    "seq": [0, 1, 1 << 40], "step": [2, 1 << 40], "examples": [0, 1 << 62], "begins": [0, 255], "reply": [1, 255],
    "checked": [1], "codec": ["topk", "onebit", "twobit", "zip", ""], "reply_codec": ["topk", "zip", ""],
    "terms": [(2.0,), (-1.0,), (-2.0,), (1.0, 0.1), (float("nan"),), (-7.0,)], "index": [0, 3, 8, 1 << 31],
    "version": [1, 1 << 40], "count": [0, 1, 7, 1 << 40, (1 << 63) - 1], "wanted": [0, 7, (1 << 63) - 1],
    "payload": [(), (b"1",), (bytes(3), bytes(5)), (bytes(4096),)], "start": [1 << 20, (1 << 63) - 1],
    "most": [0, (1 << 63) - 1], "epoch": [0, 7],
}  # fmt: skip


def damaged(draw: st.DrawFn, message: Any) -> Any:
    """Return a message with up to two things wrong, in some cases."""
    fields = sorted(WRONG.keys() & set(message.__slots__))
    for field in draw(st.just([]) | st.lists(st.sampled_from(fields), max_size=2)):
        message = replace(message, **{field: draw(st.sampled_from(WRONG[field]))})
    return message


@st.composite
def pushes(draw: st.DrawFn, first: int) -> PushRows:
    """Return a push of rows as a worker would send it, or nearly."""
    table, seq = draw(st.integers(0, len(TABLES) - 1)), draw(st.integers(1, 20))
    ids, wanted = draw(IDS), draw(IDS)
    if draw(st.integers(0, 5)) == 0:
        ids = ids * 2  # which nobody is to send
    values = np.resize(np.array(draw(NUMBERS), np.float32), len(ids) * TABLES[table].dim)
    if values.size and draw(st.integers(0, 5)) == 0:
        values[draw(st.integers(0, values.size - 1))] = draw(st.sampled_from([np.nan, np.inf]))
    codec, data = draw(CODECS), values.tobytes()
    if codec != "raw":
        with np.errstate(all="ignore"):
            data = b"".join(bytes(blob) for blob in CODING.compress(parse(codec), [[values]], None, 1))
    reply = draw(st.sampled_from([0, 0, 1]))
    head = np.array([*ids, *(wanted if reply else [])], np.int64).tobytes()
    message = PushRows(
        request=seq, seq=seq, epoch=EPOCH, step=draw(st.integers(0, 1)), attempt=draw(st.integers(1, 3)),
        examples=draw(st.integers(1, 5)), begins=draw(st.integers(0, 1)), reply=reply, checked=0, codec=codec,
        reply_codec=draw(CODECS) if reply else "raw", terms=draw(st.sampled_from([(), (), (SET,)])),
        index=first + table, version=0, count=len(ids), wanted=len(wanted) if reply else 0,
        payload=draw(split(head + data)),
    )  # fmt: skip
    return damaged(draw, message)  # type: ignore[no-any-return]


@st.composite
def pulls(draw: st.DrawFn, first: int) -> PullRows | ScanRows:
    """Return what asks for rows, or nearly."""
    index, request = first + draw(st.integers(0, len(TABLES) - 1)), draw(st.integers(100, 104))
    if draw(st.booleans()):
        return damaged(draw, ScanRows(request, EPOCH, index, 0, draw(st.integers(0, 9))))  # type: ignore[no-any-return]
    ids = np.array(draw(IDS), np.int64)
    payload = draw(split(ids.tobytes()))
    pull = PullRows(request, EPOCH, draw(st.integers(0, 1)), draw(CODECS), index, ids.size, payload)
    return damaged(draw, pull)  # type: ignore[no-any-return]


def expected_nbytes(message: Message, first: int) -> int | None:
    """Return what an answer in raw has for the rows that were asked for; None: that depends."""
    if isinstance(message, PushRows):
        return message.wanted * TABLES[message.index - first].nbytes if message.reply_codec == "raw" else None
    return message.count * TABLES[message.index - first].nbytes if isinstance(message, PullRows) else None


def check(mode: str, first: int, machine: ServerKernel, messages: Sequence[Message]) -> None:
    now, step = 1.0, 0
    for message in messages:
        now += 1.0
        if isinstance(message, Commit):
            machine.handle(Received(COORDINATOR, replace(message, step=step)), now)
            step += 1
            machine.validate()
            continue
        before = State.of(machine)
        with np.errstate(all="ignore"):
            answers = sends(machine.handle(Received(PEER, message), now))
        machine.validate()
        after = State.of(machine)
        found: list[Any] = [answer.message for answer in answers]
        own = [answer for answer in found if answer.request == message.request]  # type: ignore[attr-defined]
        assert len(own) == len(found) or isinstance(message, PushRows), "others have waited for that version"
        if not own:  # a pull of a version that is yet to come
            assert isinstance(message, PullRows)
            continue
        [answer] = own
        if isinstance(answer, Error):
            assert answer.code in BY_CODE
        if isinstance(answer, Error) or not isinstance(message, PushRows):
            assert after == before, "what is refused, or only read, changes nothing"
            if isinstance(answer, Error):
                continue
        elif after != before:
            assert isinstance(answer, (Ack, Values))
            changed = message.index - first
            same = [number for number in range(len(TABLES)) if number != changed]
            assert [after.rows[number] for number in same] == [before.rows[number] for number in same]
            assert mode == "async" or after.rows == before.rows, "nothing is applied before the commit"
        if isinstance(answer, Values) and (nbytes := expected_nbytes(message, first)) is not None:
            got = sum(memoryview(buffer).nbytes for buffer in answer.payload)
            assert got == nbytes or answer.codec != "raw"
        if isinstance(message, ScanRows) and isinstance(answer, Values):
            assert sum(memoryview(buffer).nbytes for buffer in answer.payload) >= 8 * len(SCANNED)


FIRST = len(job_of("async")[1].slices[0])
COMMITS = st.builds(Commit, st.just(EPOCH), st.just(0), st.lists(st.integers(0, 3), max_size=3, unique=True).map(
    lambda attempts: ((WHO, tuple(attempts)),) if attempts else ()
))  # fmt: skip
SAID = st.lists(pushes(FIRST) | pushes(FIRST) | pulls(FIRST), min_size=1, max_size=12)
STEPS = st.lists(pushes(FIRST) | pushes(FIRST) | pulls(FIRST) | COMMITS, min_size=1, max_size=12)


@pytest.mark.parametrize("nonfinite", ["reject", "allow"])
@given(data=st.data())
@settings(max_examples=30)
def test_a_server_answers_whatever_is_said_of_rows(data: st.DataObject, nonfinite: str) -> None:
    machine, first = server_of("async", nonfinite)
    check("async", first, machine, data.draw(SAID))


@given(STEPS)
@settings(max_examples=30)
def test_a_synchronous_server_does(messages: list[Message]) -> None:
    machine, first = server_of("sync")
    check("sync", first, machine, messages)


@pytest.mark.slow
@given(SAID)
@settings(max_examples=1000)
def test_a_server_answers_for_long(messages: list[Message]) -> None:
    machine, first = server_of("async")
    check("async", first, machine, messages)


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=1000)
def test_a_synchronous_server_does_for_long(messages: list[Message]) -> None:
    machine, first = server_of("sync")
    check("sync", first, machine, messages)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("codec", ["raw", "bf16", "fp16"])
@given(
    st.lists(st.sampled_from(POOL.tolist()), min_size=1, max_size=7, unique=True),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    st.data(),
)
@settings(max_examples=8)
def test_rows_of_a_peer_that_does_not_look_itself_are_refused_with_id_and_worker(
    mode: str, codec: str, ids: list[int], wrong: float, data: st.DataObject
) -> None:
    machine, first = server_of(mode)
    values, bad = np.ones((len(ids), 300), np.float32), data.draw(st.integers(0, len(ids) - 1))
    values[bad, data.draw(st.integers(0, 299))] = wrong
    blobs = [values.tobytes()]
    if codec != "raw":
        blobs = [bytes(blob) for blob in CODING.compress(parse(codec), [[values.reshape(-1)]], None, 1)]
    head = np.array(ids, np.int64).tobytes()
    message = PushRows(1, 1, EPOCH, 0, 1, 1, 0, 0, codec, "raw", (), 1, first + 1, 0, len(ids), 0, (head, *blobs))
    before = State.of(machine)
    [answer] = [answer.message for answer in sends(machine.handle(Received(PEER, message), 1.0)) if answer.peer == PEER]
    assert isinstance(answer, Error)
    assert answer.code == NonFiniteGradientError.code
    assert repr(f"wide[{ids[bad]}]") in answer.text
    assert WHO.hex()[:6] in answer.text or "worker" in answer.text
    assert State.of(machine) == before
    encode(answer)
