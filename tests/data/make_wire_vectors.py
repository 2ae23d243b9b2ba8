"""Write wire_vectors.json: every message of the protocol in words and in bytes, and bytes that are none.

Run ``python -m tests.data.make_wire_vectors`` after a change of the protocol; what exists may only be added to.
In JSON, bytes are ``{"hex": "..."}``; a payload is a list of buffers, each in hex.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from zmqps.codecs import bf16
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.messages.replication import ASKED, AVERAGED, NOBODY, PUSHED, REMEMBERED, STATE, STEPPED
from zmqps.core.protocol.security.keys import claim_of, process_of, proof_of, ticket_of
from zmqps.core.protocol.wire import INLINE_NBYTES, decode, encode
from zmqps.errors import JobEndedError, JobMemoryError, NonFiniteGradientError, ProtocolError

PATH = Path(__file__).with_name("wire_vectors.json")

WORKER, SERVER = bytes(range(16)), bytes(range(16, 32))
JOB = {
    "parameters": [["w", [3, 2], "float32"], ["b", [2], "float64"]],
    "optimizer": {
        "name": "sgd",
        "hyper": {"weight_decay": 0.0},
        "learning_rate": 0.5,
        "clip_value": None,
        "groups": [],
    },
    "mode": "async",
    "staleness": None,
    "nonfinite": "reject",
    "aggregate": None,
    "on_straggler": "wait",
    "retain": 0,
    "push_codec": "raw",
    "pull_codec": "raw",
    "treatment": None,
    "deterministic": False,
    "mean": "pushed",
    "workers": None,
}
CUTS = {"cuts": [[0, 6], [0, 2]], "slice_nbytes": 1 << 20}
REFUSED = NonFiniteGradientError(worker="w (host, pid 1)", parameters="'w'")
ENDED = JobEndedError(job="resnet", reason="ended by zmqps jobs end")
MEMORY = JobMemoryError(server="server-b", what="shard 0 of 1 (values 56)", needed_nbytes=56, free_nbytes=40)
SECRET, KEY = bytes(range(16, 32)), bytes(range(32, 48))
TICKET, PROOF = ticket_of(KEY, "worker", WORKER), proof_of(KEY, "worker", WORKER)
BACKUP = {
    "name": "server-b",
    "rank": 1,
    "endpoint": "tcp://10.0.0.2:7000",
    "epoch": 5,
    "ticket": KEY.hex(),
    "proof": KEY.hex(),
}
TO_REACH = {
    "name": "server-b", "endpoint": "tcp://10.0.0.2:5571", "rank": 0, "epoch": 1, "ticket": TICKET.hex(),
    "proof": PROOF.hex(),
}  # fmt: skip
W, B = np.array([1, -2, 0.5, 0, 3, 4], "<f4"), np.array([0.25, -1], "<f8")
LARGE = np.arange(1100, dtype="<f4")  # beyond what travels inside the header
IDS = np.array([-1, 1 << 62, 7, 0, 1], "<i8").view("<f4")

MESSAGES: dict[str, m.Message] = {
    "hello of a worker": m.Hello(
        "zmqps", m.PROTOCOL_VERSION, "worker", WORKER, "worker-a", "host-a", 4711, job="resnet", secret=SECRET
    ),
    "hello of a worker that a supervisor has started": m.Hello(
        "zmqps",
        m.PROTOCOL_VERSION,
        "worker",
        WORKER,
        "worker-a",
        "host-a",
        4711,
        job="resnet",
        secret=SECRET,
        process=process_of(SECRET),
    ),
    "hello of an observer": m.Hello(
        "zmqps",
        m.PROTOCOL_VERSION,
        "observer",
        WORKER,
        "reader",
        "host-a",
        4712,
        job="ünder 50 %",
        secret=SECRET,
        guard=PROOF,
    ),
    "hello of a server": m.Hello(
        "zmqps",
        m.PROTOCOL_VERSION,
        "server",
        SERVER,
        "server-b",
        "host-b",
        12,
        "tcp://10.0.0.2:5571",
        ("x",),
        secret=SECRET,
    ),
    "hello of a worker to a server": m.Hello(
        "zmqps", m.PROTOCOL_VERSION, "worker", WORKER, "worker-a", "host-a", 4711, job="resnet", secret=TICKET, epoch=7
    ),
    "hello of a worker with a number": m.Hello(
        "zmqps", m.PROTOCOL_VERSION, "worker", WORKER, "worker-3", "host-a", 4714, job="resnet", secret=SECRET, wish=4
    ),
    "back": m.Back(SERVER),
    "farewell": m.Farewell(WORKER, PROOF, "finished"),
    "resumed": m.Resumed(7),
    "welcome of a coordinator with a journal": m.Welcome(
        m.PROTOCOL_VERSION, SERVER, "coordinator", 2, 1.0, 10.0, 4, 2, patience=600.0
    ),
    "hello of a worker that was started again": m.Hello(
        "zmqps",
        m.PROTOCOL_VERSION,
        "worker",
        WORKER,
        "worker-2",
        "host-a",
        4713,
        job="resnet",
        secret=SECRET,
        claim=claim_of(KEY, "worker", "resnet", "worker-2"),
        life=1,
    ),
    "welcome": m.Welcome(m.PROTOCOL_VERSION, SERVER, "coordinator", 2, 1.0, 10.0, 4, 2),
    "welcome of a server": m.Welcome(m.PROTOCOL_VERSION, SERVER, "server-b", 0, 0.0, 0.0, 4, 2, proof=PROOF),
    "heartbeat": m.Heartbeat({"pushes": 12, "staleness_mean": 0.5, "loaded": True, "nested": {"list": [1, None, "x"]}}),
    "heartbeat answered": m.HeartbeatAck(4),
    "leave": m.Leave("finished"),
    "leave of a worker that drains": m.Leave("drained"),
    "left": m.Left(),
    "error with facts": m.Error(7, REFUSED.code, str(REFUSED), REFUSED.facts()),
    "error about no request": m.Error(0, 21, "x", {"ours": 1, "theirs": 2}),
    "error about the end of a job": m.Error(0, ENDED.code, str(ENDED), ENDED.facts()),
    "error about memory": m.Error(3, MEMORY.code, str(MEMORY), MEMORY.facts()),
    "end of a process": m.Exited(1, SECRET, "signal SIGKILL"),
    "end of a process, noted": m.ExitNoted(1, ("worker 1 (worker-b, host-b, pid 12)",)),
    "lost": m.Lost("server", 1, "server-b", SERVER, 10.25),
    "shutdown": m.Shutdown("the job is finished"),
    "init": m.Init(1, JOB),
    "init of a job for two workers": m.Init(3, {**JOB, "workers": 2}),
    "init for the job as it is": m.Init(2, {}),
    "job": m.Job(1, 1, JOB, {**CUTS, "servers": [TO_REACH]}, 1, 0, 4, "", 0),
    "job with a note": m.Job(2, 7, JOB, {**CUTS, "servers": []}, 0, 41, 4, "the job 'resnet' goes on", 3),
    "assign": m.Assign(1, "resnet", 4, 2, 0, JOB, CUTS, KEY),
    "ready": m.Ready(1, 1),
    "discard": m.Discard(7),
    "discard, for another copy answers": m.Discard(7, 1),
    "discarded": m.Discarded(7),
    "departed": m.Departed(WORKER, 0),
    "evicted": m.Departed(WORKER, 1),
    "forgotten": m.Forgotten(WORKER),
    "end of a job": m.EndJob(1, "resnet"),
    "end of a job of a guarded cluster": m.EndJob(1, "resnet", SECRET, PROOF),
    "job ended": m.JobEnded(1, "job 'resnet' has ended"),
    "enter": m.Enter(3, "epoch-1"),
    "released": m.Released(3, 0),
    "released to a later step": m.Released(4, 41),
    "withdraw": m.Withdraw(3),
    "waiting": m.Waiting(3, "worker 1 (wörker-ß, host, pid 5)"),
    "status request": m.StatusRequest(1),
    "status": m.Status(1, {"state": "training", "uptime_s": 1.5, "members": []}),
    "watch": m.Watch(1, 300.0, 200),
    "watch a node of a job": m.Watch(2, 3600.0, 100, 10.0, "resnet", "worker 2"),
    "watched": m.Status(2, {"now": 41.5, "status": {}, "series": [], "events": []}),
    "push of rows that asks for others": m.PushRows(9, 7, 1, 0, 0, 1, 1, 1, "raw", "raw", (), 1, 2, 41, 2, 3, (IDS, W)),
    "push of rows for a synchronous step": m.PushRows(
        10, 8, 1, 41, 42, 16, 0, 0, "bf16", "raw", (), 1, 2, 41, 3, 0, (IDS[:6], B)
    ),
    "pull of rows": m.PullRows(11, 1, 41, "raw", 2, 5, (IDS,)),
    "scan of rows": m.ScanRows(12, 1, 2, 4096, 65536),
    "scan of rows that have changed": m.ScanRows(13, 1, 2, 0, 65536, ((1 << 64) - 1, 41, 40, 1 << 32, 7)),
    "load": m.Load(1, 1, ((0, 0, ()),), (W,)),
    "push of a slice": m.Push(2, 1, 1, 0, 0, 1, 0, 1, "raw", "raw", (), ((0, 0, ()),), (W,)),
    "push of ranges in two slices with a reply": m.Push(
        3, 2, 1, 0, 0, 1, 1, 0, "raw", "bf16", (), ((0, 1, (0, 2, 4, 6)), (1, 1, ())), (W[:4], B)
    ),
    "push beside the header": m.Push(4, 3, 1, 0, 0, 1, 0, 1, "raw", "raw", (), ((0, 7, ()),), (LARGE,)),
    "push in two frames": m.Push(5, 4, 1, 0, 0, 1, 0, 1, "raw", "raw", (), ((0, 7, ()), (1, 7, ())), (LARGE, B)),
    "push for a synchronous step": m.Push(6, 5, 1, 41, 42, 16, 0, 1, "raw", "raw", (), ((0, 41, ()),), (W,)),
    "pull": m.Pull(6, 1, 0, 0, "raw", ((0, 0, ()), (1, 0, (0, 1)))),
    "pull of exactly one version": m.Pull(7, 1, 41, 1, "raw", ((0, 0, ()),)),
    "measured": m.Measured(1, 41, 2.5),
    "set rates": m.SetRates(4, 41, (1.0, 2.0, 0.01, -1e30)),
    "rates set": m.RatesSet(4, (1.0, 2.0, 0.01, -1e30)),
    "push on terms": m.Push(7, 6, 1, 0, 0, 1, 0, 1, "raw", "raw", (0.5,), ((0, 41, ()),), (W,)),
    "arrive": m.Arrive(4, 41, (42,)),
    "arrive of a worker that leaves out the step for all": m.Arrive(5, 42, (43, 44), 16, 1),
    "proceed": m.Proceed(4, 42, 1),
    "proceed after a step that was left out": m.Proceed(5, 43, 1, 1),
    "commit": m.Commit(1, 41, ((WORKER, (42, 43)), (SERVER, (7,)))),
    "commit that asks for the norm": m.Commit(1, 42, ((WORKER, (44,)),), (), 1),
    "commit on terms": m.Commit(1, 42, ((WORKER, (44,)),), (0.5, 2.0, 0.01, -1e30)),
    "commit of a mean over all workers": m.Commit(1, 42, ((WORKER, (44,)), (SERVER, (8,))), (), 0, 48),
    "commit of a step that is left out": m.Commit(1, 43, ((WORKER, (45,)),), (), 0, 0, 1),
    "committed": m.Committed(1, 41),
    "take of a first range": m.Take(5, "data", 60000, 256, 10, (), ()),
    "take after a range": m.Take(6, "train", 1 << 33, 4096, 1, (42,), (3, 117)),
    "range": m.Range(6, 3, 118, 483328, 487424, 0),
    "range after a wait": m.Range(7, 1, 0, 0, 256, 40),
    "no range any more": m.Range(8, 10, 0, 0, 0, 0),
    "job that was restored": m.Job(
        3,
        7,
        JOB,
        {**CUTS, "servers": []},
        0,
        500,
        4,
        "",
        3,
        {"path": "/data/resnet/ckpt-000000000500-0001", "version": 500, "state": {"epoch": 3}},
    ),
    "assign of a shard that was saved": m.Assign(
        1,
        "resnet",
        4,
        2,
        0,
        JOB,
        CUTS,
        KEY,
        {"path": "/data/resnet/ckpt-000000000500-0001", "version": 500, "optimizer": True, "names": {"w": "old.w"}},
    ),
    "save": m.Save(7, 2, 1, 500, "/data/resnet/tmp-000000000500-0002-a", 1),
    "saved": m.Saved(7, 1, 2, {"nbytes": 12, "files": [["a", 12, "00"]]}),
    "save that has failed": m.Saved(7, 1, 3, {"why": "the disk is full"}),
    "unsave": m.Unsave(7, 1),
    "checkpoint": m.Checkpoint(9, "", 1, {"epoch": 3, "best": 0.5}),
    "checkpoint asked for from outside": m.Checkpoint(1, "resnet", 0, {}, SECRET, PROOF),
    "checkpointed": m.Checkpointed(9, "/data/resnet/ckpt-000000000500-0001", 500, 1.5, 306_000_000),
    "hold": m.Hold(1),
    "holding": m.Holding(1),
    "end of a hold": m.Hold(1, 1),
    "stretch of a file to write": m.FileAsk(3, "write", "/data/resnet/tmp-1/a.safetensors", 64, 0, (W,)),
    "stretch of a file to read": m.FileAsk(4, "read", "/data/resnet/ckpt-1/a.safetensors", 64, 4096, ()),
    "file that was read": m.FileAnswer(4, {}, (W,)),
    "file that is not there": m.FileAnswer(5, {"errno": 2, "why": "No such file or directory"}, ()),
    "tensors from one stage to another": m.Tensors(
        1, {"hidden": ["float32", [2, 3], "raw", 24], "mask": ["bool", [0], "raw", 0]}, (W,)
    ),
    "tensors in bf16": m.Tensors(2, {"x": ["float32", [1100], "bf16", 2200]}, (bf16().encode(LARGE),)),
    "ack of a load": m.Ack(1, (), ()),
    "ack of a push": m.Ack(2, (1,), (0,)),
    "ack with large numbers": m.Ack((1 << 64) - 1, (1 << 40, 255, 65536), (0, 256, 1 << 33)),
    "values": m.Values(6, "raw", (2, 2), (), (W, B)),
    "values of a push": m.Values(3, "raw", (2, 2), (0, 1), (W[:4], B)),
    "values of nothing": m.Values(9, "raw", (), (), ()),
    "values beside the header": m.Values(10, "raw", (8,), (), (LARGE,)),
    "assign of a backup": m.Assign(5, "resnet", 4, 2, 0, JOB, CUTS, KEY, {}, 1, 1, {}),
    "assign of a leader": m.Assign(1, "resnet", 4, 2, 0, JOB, CUTS, KEY, {}, 1, 0, {"rows": [BACKUP]}),
    "replicate a push": m.Replicate(
        5, 9, PUSHED, WORKER, 7, 0, "raw", (2, 2), (0, 1), (0.25,), ((0, 1, ()), (1, 0, (2, 4))), (W, B)
    ),
    "replicate a mean": m.Replicate(
        5, 10, AVERAGED, NOBODY, 0, 3, "raw", (), (), (0.5, 2.0, 0.01, -1e30), ((0, 3, ()),), (LARGE,)
    ),
    "replicate a question": m.Replicate(5, 12, ASKED, NOBODY, 0, 0, "raw", (), (), (), (), ()),
    "replicate the end of a step": m.Replicate(5, 11, STEPPED, NOBODY, 0, 3, "raw", (), (), (), (), ()),
    "replicate a part of a ledger": m.Replicate(
        5, 1, REMEMBERED, WORKER, 0, 0, "raw", (), (), (), (), (np.array([0, 7, 1, 2, 0], "<u8"),)
    ),
    "replicate a slice": m.Replicate(5, 2, STATE, NOBODY, 0, 3, "raw", (3,), (), (), ((0, 3, ()),), (W,)),
    "replicated": m.Replicated(5, 9, 0),
    "replicated, but for some": m.Replicated(5, 9, 1),
    "lead with other backups": m.Lead(1, 2, {"rows": [BACKUP]}),
    "lead from now on": m.Lead(5, 3),
    "leading": m.Leading(5, 3, 2),
    "shard that has moved": m.View(1, 3, m.ChangeKind.MOVED, (0,), {"servers": [TO_REACH]}),
    "shard about to move": m.View(1, 3, m.ChangeKind.MOVED, (0,), {}),
    "shards about to go back": m.View(1, 1, m.ChangeKind.REWOUND, (0, 2), {}, {"path": "/data/default/ckpt-7"}),
    "shard that has gone back": m.View(
        1,
        2,
        m.ChangeKind.REWOUND,
        (2,),
        {"servers": [TO_REACH]},
        {"path": "/data/default/ckpt-7", "version": 7, "state": {"epoch": 3}},
    ),
    "recalled": m.Recalled(9, 4, (6, 7)),
    "lead backups that have all that the copy has": m.Lead(5, 3, {"rows": [{**BACKUP, "number": 12}]}),
    "drain asked for by a server": m.Drain(1, "", 0),
    "drain asked for from outside": m.Drain(1, "server-1", 0, SECRET, PROOF),
    "a server may stay": m.Drain(2, "server-1", 1, SECRET, PROOF),
    "draining": m.Draining(1, 0, "server-1 is being drained: shard 1 to server-2, 40%"),
    "yield": m.Yield(1, 4),
    "yielded": m.Yielded(1, 4, 0, {"5": 12, "6": 9}),
    "busy": m.Yielded(1, 4, 1),
    "scale": m.Scale(1, 4, SECRET, PROOF),
    "trace": m.Trace(1, 1, "digits", 10.0, 20, 8 << 20, SECRET, PROOF),
    "how far a trace is": m.Trace(2, 0, "", 0.0, 0, 0, SECRET, PROOF),
    "tracing": m.Tracing(1, 7, 1, 9.5, {"nodes": [{"role": "server", "rank": 0, "state": 1, "nbytes": 0}]}),
    "record spans": m.RecordSpans(7, 9.5, 8 << 20),
    "record no more spans": m.RecordSpans(7, 0.0, 0),
    "spans recorded": m.SpansRecorded(7, 2, 1000.25, 5600, 0, 20, {"offset_s": -1.5, "error_s": 0.00025}),
    "clock": m.Clock(7, 2, 1000.25, 998.7501),
    "fetch": m.Fetch(3, 7, WORKER, 49152, SECRET, PROOF),
    "piece": m.Piece(3, 7, WORKER, 49152, 49156, b"abcd"),
    "cut": m.Cut(7, (1, 2), 40),
    "note": m.Note(3, ((0.5, 41, {"loss": 0.25, "größe": float("inf")}), (0.25, None, {"loss": -1.5}))),
    "noted": m.Noted(5),
    "cut of nothing": m.Cut(8, (), 0),
    "shards cut anew": m.View(
        1, 3, m.ChangeKind.CUT, (), {"cuts": [[0, 4, 8]], "slice_nbytes": 4096, "servers": [TO_REACH, TO_REACH]}
    ),
    "followed": m.Followed(1, 3, 5),
    "do all answer": m.Examine(1),
    "what does one do": m.Examine(1, "worker-2", SECRET, PROOF),
    "all have answered": m.Examined(1, {"seconds": 0.1, "nodes": [{"role": "worker", "rank": 2, "state": "answered"}]}),
    "the coordinator's own": m.Examined(1, {"seconds": 0.0, "nodes": []}, 1),
    "probe": m.Probe(7, 0),
    "probe of the stacks": m.Probe(8, 1),
    "probed": m.Probed(7, 0, 0.25),
    "stacks": m.Probed(8, 1, 0.0, ("thread MainThread", "  train.py:12 step")),
}

MALFORMED: dict[str, list[bytes]] = {
    "no frame": [],
    "an empty header": [b""],
    "no msgpack": [b"\xc1"],
    "a map": [msgpack.packb({"kind": 6})],
    "no kind": [msgpack.packb([])],
    "an unknown kind": [msgpack.packb([200, 1])],
    "a kind that is true": [msgpack.packb([True])],
    "too few fields": [msgpack.packb([35, 1, []])],
    "too many fields": [msgpack.packb([6, 1])],
    "a hello of eight fields": [msgpack.packb([1, "zmqps", 2, "worker", bytes(16), "n", "h", 1, ""])],
    "a hello whose job is a number": [msgpack.packb([1, "zmqps", 2, "worker", bytes(16), "n", "h", 1, "", [], 7])],
    "bytes behind the header": [msgpack.packb([6]) + b"\x00"],
    "text that is not utf-8": [b"\x92\x09\xa2\xff\xfe"],
    "an extension type": [msgpack.packb([9, msgpack.ExtType(3, b"x")])],
    "a negative request": [msgpack.packb([15, -1])],
    "an epoch of 33 bits": [msgpack.packb([13, 1 << 32, 0])],
    "an incarnation of 15 bytes": [msgpack.packb([8, "worker", 0, "n", bytes(15), 0.0])],
    "a negative duration": [msgpack.packb([8, "worker", 0, "n", bytes(16), -1.0])],
    "a text of 4097 characters": [msgpack.packb([9, "x" * 4097])],
    "lists nested nine deep": [msgpack.packb([3, {"a": [[[[[[[[1]]]]]]]]}])],
    "a map key that is a number": [msgpack.packb([3, {1: 1}])],
    "a contributor without attempts": [msgpack.packb([22, 1, 0, [[bytes(16), 1.0]]])],
    "an empty range": [msgpack.packb([34, 1, 1, 0, 0, "raw", [[0, 0, [2, 2]]]])],
    "ranges that do not ascend": [msgpack.packb([34, 1, 1, 0, 0, "raw", [[0, 0, [4, 6, 0, 2]]]])],
    "a list of four billion": [b"\x92\x03\xdd\xff\xff\xff\xff"],
    "frames for a message without payload": [msgpack.packb([6]), b"x"],
    "a frame beside an inline payload": [msgpack.packb([36, 1, "raw", [], [], b"1234"]), b"1234"],
    "an inline payload of 4097 bytes": [msgpack.packb([36, 1, "raw", [], [], bytes(INLINE_NBYTES + 1)])],
    "a frame that is missing": [msgpack.packb([36, 1, "raw", [], [], [4, 4]]), b"1234"],
    "a frame too many": [msgpack.packb([36, 1, "raw", [], [], [4]]), b"1234", b"1234"],
    "a frame shorter than announced": [msgpack.packb([36, 1, "raw", [], [], [8]]), b"1234"],
    "a frame longer than announced": [msgpack.packb([36, 1, "raw", [], [], [2]]), b"1234"],
}


def in_json(value: Any) -> Any:
    """Return a field with its bytes in hex, those inside contributors too; maps hold none."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [in_json(item) for item in value] if isinstance(value, list | tuple) else value


def out_of_json(value: Any) -> Any:
    """Return what `in_json` was given, tuples as lists."""
    if isinstance(value, dict) and set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    return [out_of_json(item) for item in value] if isinstance(value, list) else value


def to_json(message: m.Message) -> dict[str, Any]:
    """Return a message as JSON has it."""
    values = {}
    for field in fields(message):  # type: ignore[arg-type]
        value = getattr(message, field.name)
        values[field.name] = [bytes(b).hex() for b in value] if field.name == "payload" else in_json(value)
    return {"type": type(message).__name__, "kind": message.kind, "fields": values}


def from_json(entry: dict[str, Any]) -> m.Message:
    """Return the message of `to_json`."""
    values = {}
    for name, value in entry["fields"].items():
        if name == "payload":
            values[name] = tuple(bytes.fromhex(buffer) for buffer in value)
        else:
            values[name] = out_of_json(value)
    return m.BY_KIND[entry["kind"]](**values)


def refusal(frames: list[bytes]) -> str:
    """Return the class of the error that `decode` raises."""
    try:
        decode(frames)
    except ProtocolError as error:
        return type(error).__name__
    raise AssertionError("this is a message")


def vectors() -> dict[str, Any]:
    """Return the whole document."""
    return {
        "protocol_version": m.PROTOCOL_VERSION,
        "messages": [
            {"name": name, "message": to_json(message), "frames": [bytes(frame).hex() for frame in encode(message)]}
            for name, message in MESSAGES.items()
        ],
        "malformed": [
            {"name": name, "frames": [frame.hex() for frame in frames], "error": refusal(frames)}
            for name, frames in MALFORMED.items()
        ],
    }


def render() -> str:
    """Return the file's text."""
    return json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
