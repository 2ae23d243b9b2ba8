"""What we read that others may have written: one entry for each parser, with how it is fed and what it accepts.

Bytes are mutated from what is accepted. Where a checksum would refuse all of them at once, the feed writes the checksum
that belongs to them: who can write a file can do that.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
from hypothesis import strategies as st

from tests.checkpoint.saved import Model, job, save
from tests.checkpoint.test_rows import Servers, job_of, spec_of
from tests.simulator.disk import Disk
from zmqps import codecs, optim
from zmqps.checkpoint import checksums, open_checkpoint, read_table
from zmqps.checkpoint.manifest import Manifest, _sealed
from zmqps.checkpoint.rows import TableFacts
from zmqps.checkpoint.table_file import TableFile
from zmqps.cli import settings
from zmqps.cli.main import cli
from zmqps.cli.running import state
from zmqps.client.lives import find_life
from zmqps.combine import messages as host_messages
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol import endpoints, plain, wire
from zmqps.core.protocol.messages import Exited
from zmqps.doctor.facts import Host
from zmqps.doctor.probe import MARK
from zmqps.doctor.remote import ProbeError, RemoteProbe
from zmqps.errors import PSError, from_wire
from zmqps.gpu import device, pinning
from zmqps.keys import create, keyring, token
from zmqps.launch import far, hosts
from zmqps.logs import lines
from zmqps.net import identity
from zmqps.net.system import environment
from zmqps.nodes.journal import PAGE
from zmqps.nodes.page import read_page
from zmqps.settings.kinds import cadence
from zmqps.trace import merge, ring

Feed = Callable[[bytes, Path], object]
#: Of a variable of the environment, an argument, a line.
MAX_TEXT_NBYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Parser:
    """A parser: what it is fed by, and what it accepts.

    Parameters
    ----------
    feed
        Has it read some bytes; it may write them into a directory first.
    good
        Returns what it accepts.
    refuses
        What it may raise. Anything of `zmqps.errors`, and what its one caller turns into an answer.
    """

    feed: Feed
    good: Callable[[], list[bytes]]
    refuses: tuple[type[Exception], ...] = (PSError,)


# --- mutations -----------------------------------------------------------------------------------

NUMBERS = [
    b"-1", b"0", b"1", b"255", b"65536", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"-0.0",
    b"1e400", b"-1e400", b"NaN", b"1e300", b"1.5", b"9" * 400, b"9" * 5000, b"null", b"true", b"[]", b"{}", b'""',
]  # fmt: skip
PIECES = [
    b"", b"\0", b"\xff", b"\xed\xa0\x80", "٣".encode(), "²".encode(), b"\\ud800", b"{", b"}", b"[", b"]", b"[" * 3000,
    b'{"a":' * 3000, b"\n", b"\r\n", b":", b",", b"=", b"-", b"/", b"..", b'"', b"#", b"%", b"\x1b[2J", b"A" * 3000,
]  # fmt: skip
TOKEN = re.compile(rb'-?\d[\d.eE+-]*|"[^"]*"|[A-Za-z_][\w-]*|true|null|\[\]|\{\}')


@st.composite
def mutated(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """Return what a parser accepts, changed in up to three places."""
    data = draw(st.sampled_from(good))
    for _ in range(draw(st.integers(1, 3))):
        data = draw(st.sampled_from(WAYS))(draw, data, good)
    return data


def _place(draw: st.DrawFn, data: bytes) -> int:
    return draw(st.integers(0, len(data)))


def _flip(draw: st.DrawFn, data: bytes, good: list[bytes]) -> bytes:
    at = _place(draw, data)
    return data[:at] + bytes([byte ^ draw(st.integers(1, 255)) for byte in data[at : at + 1]]) + data[at + 1 :]


def _cut(draw: st.DrawFn, data: bytes, good: list[bytes]) -> bytes:
    first, last = sorted((_place(draw, data), _place(draw, data)))
    return draw(st.sampled_from([data[:first], data[first:], data[:first] + data[last:]]))


def _insert(draw: st.DrawFn, data: bytes, good: list[bytes]) -> bytes:
    at = _place(draw, data)
    return data[:at] + draw(st.sampled_from(PIECES) | st.binary(max_size=20)) + data[at:]


def _splice(draw: st.DrawFn, data: bytes, good: list[bytes]) -> bytes:
    other = draw(st.sampled_from(good))
    return data[: _place(draw, data)] + other[_place(draw, other) :]


def _exchange(draw: st.DrawFn, data: bytes, good: list[bytes]) -> bytes:
    """Put something else where a number, a text or a word stands."""
    found = list(islice(TOKEN.finditer(data), 2000))
    if not found:
        return data
    here, other = draw(st.sampled_from(found)), draw(st.sampled_from(found))[0]
    return data[: here.start()] + draw(st.sampled_from([*NUMBERS, other])) + data[here.end() :]


WAYS = [_flip, _cut, _insert, _splice, _exchange, _exchange, _exchange]


# --- how they are fed ----------------------------------------------------------------------------


def _text(parse: Callable[[str], object], *good: str, **options: Any) -> Parser:
    """Return a parser of text that is not read from a file."""
    return Parser(
        feed=lambda data, _: parse(data[:MAX_TEXT_NBYTES].decode(errors="surrogateescape")),
        good=lambda: [text.encode() for text in good],
        **options,
    )


def _plain(parse: Callable[[Any], object], *good: Callable[[], Any]) -> Parser:
    """Return a parser of plain data, which JSON or msgpack have brought."""

    def feed(data: bytes, _: Path) -> object:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return parse(found)

    return Parser(feed=feed, good=lambda: [json.dumps(make()).encode() for make in good])


def _file(name: str, parse: Callable[[Path], object], *good: bytes, **options: Any) -> Parser:
    """Return a parser of a file of a name, which is given its directory."""

    def feed(data: bytes, place: Path) -> object:
        path = place / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(0o600)
        path.write_bytes(data)
        return parse(place)

    return Parser(feed=feed, good=lambda: list(good), **options)


SPEC = job(Parameter("w", (4, 3), "float32"), Parameter("b", (3,), "float16"), mode="bounded", staleness=2)
TABLE = spec_of("items", expire_steps=5)


@cache
def _manifest() -> bytes:
    disk, path = _dense()
    return disk.read(f"{path}/manifest.json")


def _dense() -> tuple[Disk, str]:
    disk, placement = Disk(), Placement.balance(KeySpace.of(SPEC), 2, 16)
    return disk, save(disk, "/run", Model.random(SPEC), placement)


def _sparse() -> tuple[Disk, str]:
    disk, servers = Disk(), Servers(job_of(TABLE), 2)
    servers.push(range(9), 1.0)
    return disk, servers.save(disk)


def _sealed_manifest(data: bytes, _: Path) -> object:
    try:
        body = json.loads(data)
        body.pop("xxh3_128", None)
        data = _sealed(body)
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # no manifest at all
    return Manifest.from_bytes("here", data)


def _part_of(saved: Callable[[], tuple[Disk, str]], kind: str) -> Parser:
    """Return what reads one file of a checkpoint, with the checksums that belong to it."""

    def names() -> list[tuple[Disk, str, str]]:
        disk, path = saved()
        return [(disk, path, name) for name in disk.names(path) if kind in name]

    def feed(data: bytes, _: Path) -> object:
        disk, path, name = names()[0]
        manifest = json.loads(disk.read(f"{path}/manifest.json"))
        [facts] = [facts for facts in manifest["shards"] if name in [fact[0] for fact in facts]]
        own, state_fact = next(fact for fact in facts if fact[0] == name), facts[-1]
        if own is not state_fact:
            record = json.loads(disk.read(f"{path}/{state_fact[0]}"))
            chunk = checksums.chunk_of(0, data)
            record["chunks"][name] = [list(chunk)]
            own[1:] = len(data), checksums.of_chunks([chunk])
            _put(disk, f"{path}/{name}", data)
            name, data = state_fact[0], json.dumps(record).encode()
        state_fact[1:] = len(data), checksums.of_bytes(data)
        _put(disk, f"{path}/{name}", data)
        manifest.pop("xxh3_128")
        _put(disk, f"{path}/manifest.json", _sealed(manifest))
        return _read_all(disk, path)

    return Parser(feed=feed, good=lambda: [disk.read(f"{path}/{name}") for disk, path, name in names()[:1]])


def _put(disk: Disk, path: str, data: bytes) -> None:
    disk.remove(path)
    disk.create(path).write_at(data, 0)


def _read_all(disk: Disk, path: str) -> object:
    checkpoint = open_checkpoint(path, storage=disk)
    list(checkpoint.verify())
    steps = [checkpoint.steps_of(parameter.name) for parameter in checkpoint.keyspace.parameters]
    rows = [checkpoint.table(table.name).everything() for table in checkpoint.manifest.job.tables]
    return checkpoint.arrays(optimizer=True), steps, rows


def _job(found: Any) -> object:
    if not isinstance(found, dict):
        return None  # the schema of the message has refused it
    spec = JobSpec.from_wire(found)
    return Placement.balance(KeySpace.of(spec), 3).to_wire() if KeySpace.of(spec).nbytes < 1 << 24 else None


def _table_rows(place: Path) -> object:
    return [(ids.size, values.shape) for ids, values in read_table(place / "t.safetensors", "t", 3)]


@cache
def _table_file() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        with TableFile(f"{place}/t.safetensors") as file:
            file.begin(TableFacts("t", 3, "j", 1, "0"))
            file.write(np.arange(2), np.zeros((2, 3), np.float32))
            file.publish()
        return Path(f"{place}/t.safetensors").read_bytes()


@cache
def _messages() -> list[bytes]:
    vectors = json.loads((Path(__file__).parents[1] / "data" / "wire_vectors.json").read_text())
    return [bytes.fromhex(vector["frames"][0]) for vector in vectors["messages"] if len(vector["frames"]) == 1]


def _host_messages() -> list[bytes]:
    bring = host_messages.HostGradients(step=3, places=[(1, 2, 3, b"k" * 16)], counts=[(0, 2, 1)])
    return [
        host_messages.encode(one) for one in (bring, host_messages.Want(4, fresh=True), host_messages.HostWaiting("a"))
    ]


def _variables(data: bytes, _: Path) -> object:
    """Read an environment: a variable a line."""
    text = data.decode(errors="surrogateescape").replace("\0", "")
    env = {name: value for name, _, value in (line.partition("=") for line in text.split("\n")) if name}
    found: list[object] = []
    readers: list[Callable[[Mapping[str, str]], object]] = [
        partial(environment.find_task, fqdn="pod-3.jobs"), environment.find_address,
        find_life, identity.launched_process, partial(pinning.visible_gpus), partial(keyring.find_keys, None, None),
        lambda env: list(islice(environment.hosts(env.get("SLURM_JOB_NODELIST", "")), environment.MOST_HOSTS)),
    ]  # fmt: skip
    for read in readers:
        try:
            found.append(read({"PATH": "", **env}))
        except PSError as error:
            found.append(error)
    return found


VARIABLES = [
    b"SLURM_PROCID=3\nSLURM_STEP_ID=0\nSLURM_NTASKS=8\nSLURM_JOB_ID=77\nSLURM_JOB_NODELIST=n[01-03,7]-[1-2],m2",
    b"SLURM_PROCID=3\nSLURM_STEP_ID=0\nSLURM_NTASKS=8\nSLURM_HET_SIZE=2\nSLURM_JOB_NODELIST_HET_GROUP_0=n[1-2]",
    b"OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_SIZE=2",
    b"RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=head\nMASTER_PORT=29500",
    b"JOB_COMPLETION_INDEX=3\nJOBSET_NAME=a\nREPLICATED_JOB_NAME=b",
    b'TF_CONFIG={"cluster": {"chief": ["head:2222"], "worker": ["a:1"]}}',
    b"DMLC_PS_ROOT_URI=head\nDMLC_PS_ROOT_PORT=9000", b"ZMQPS_COORDINATOR=tcp://head:5570\nCUDA_VISIBLE_DEVICES=0,1,-1",
    b"ZMQPS_WORKER_TOKEN=00112233445566778899aabbccddeeff\nZMQPS_WORKER_LIFE=2\nZMQPS_WORKER_INDEX=1",
    b"ZMQPS_KEYS=/nowhere\nPMI_RANK=1\nPMI_SIZE=2",
]  # fmt: skip


def _configuration(place: Path) -> object:
    """Read a file as a command does, and have each command take its defaults."""
    defaults = settings.read_config(place / "cluster.toml", cli)
    commands = {name: cli.commands[name] for name in ("coordinator", "server", "up")}
    return [command.make_context(name, [], default_map=defaults[name]) for name, command in commands.items()]


@cache
def _keys() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        create(f"{place}/keys")
        files = {file.name: file.read_bytes() for file in Path(place, "keys").iterdir()}
        return files | {"token": token(f"{place}/keys", "worker", "tcp://head:5570").encode()}


def _one_key(name: str) -> Parser:
    """Return what reads one file of a directory of keys, beside the others."""

    def feed(data: bytes, place: Path) -> object:
        for other, content in {**_keys(), name: data}.items():
            (place / other).touch(0o600)
            (place / other).write_bytes(content)
        return keyring.load_node_keys(place)

    return Parser(feed=feed, good=lambda: [_keys()[name]])


def _answer(data: bytes, _: Path) -> object:
    """Have the answer of a probe read that runs on another host."""

    async def ask() -> object:
        probe = RemoteProbe(Host(name="h", command=("true",)))
        stream, errors = asyncio.StreamReader(limit=1 << 20), asyncio.StreamReader()
        for reader, said in ((stream, data), (errors, b"no more\n")):
            reader.feed_data(said)
            reader.feed_eof()

        async def drain() -> None: ...

        async def wait() -> int:
            return 1

        probe._process = SimpleNamespace(  # type: ignore[assignment]
            stdin=SimpleNamespace(write=len, drain=drain), stdout=stream, stderr=errors, wait=wait, returncode=1
        )
        return await probe.ask(5.0, do="facts")

    return asyncio.run(ask())


def _ring() -> list[bytes]:
    one = ring.Ring(1 << 10, {"title": "server s", "boot": "here", "epoch_ns": 5})
    one.span("serve", "server", 1_000, 3_500, message="Push", request="0a1b2c3d-17", slice=3, version=9)
    one.close()
    return [one.read(0, one.nbytes)]


MERGED = b"""{"traceEvents": [
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "worker 0"}},
{"name": "process", "ph": "M", "pid": 1, "args": {"boot": "a", "label": "worker 0", "incarnation": "0a"}},
{"name": "send", "cat": "w", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 7, "args": {"request": "0a-1"}},
{"name": "serve", "cat": "s", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 7, "args": {"request": "0a-1"}},
{"name": "deliver", "cat": "s", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 7, "args": {}},
{"name": "wait", "cat": "w", "ph": "b", "ts": 1, "id": 5, "pid": 1, "tid": 0, "args": {}},
{"name": "wait", "cat": "w", "ph": "e", "ts": 9, "id": 5, "pid": 1, "tid": 0, "args": {}}],
"displayTimeUnit": "ms", "otherData": {"clocks": {"b": [1.5, 0.5]}, "notes": ["n"], "epoch_us": 12.5}}"""


def _log(text: str) -> object:
    entry = lines.read_entry(text)
    return lines.read_message(text), entry.text() if entry is not None else ""


HOSTFILE = b"# ours\nhost-a slots=4\nme@host-b servers=1 workers=4 interface=eth1\n[fd00::7] slots=2 port=2222\n"
CONFIGURATION = b"""
coordinator-endpoint = "tcp://head:5570"
[coordinator]
servers = 2
heartbeat-timeout = 1.5
journal = "/j"
page = "127.0.0.1:0"
[server]
memory = "8GB"
ports = "5571-5580"
[up]
workers = 2
checkpoint-every = "5min"
"""
STATE = json.dumps({**dict.fromkeys(state.TEXTS, "a"), "pid": 1, "start": 2, "saves": True, "unsaved": False}).encode()
ERROR = {"code": 85, "text": "t", "facts": {"path": "p", "why": "w", "advice": "a"}}
NOW = datetime(2026, 11, 27, 7, 0, tzinfo=UTC)

#: By what it reads.
PARSERS: dict[str, Parser] = {
    # from peers
    "a message's header": Parser(feed=lambda data, _: wire.decode([data]), good=_messages),
    "a supervisor's report": Parser(
        feed=lambda data, _: wire.decode([data]),
        good=lambda: [bytes(wire.encode(Exited(7, b"t" * 16, "killed by SIGKILL"))[0])],
    ),
    "a job": _plain(_job, SPEC.to_wire, job_of(TABLE).to_wire),
    "a table": _plain(TableSpec.from_wire, TABLE.to_wire),
    "an optimizer": _plain(optim.OptimizerSpec.from_wire, optim.adam(0.1).to_wire, optim.sgd(0.1).to_wire),
    "a placement": _plain(
        lambda found: Placement.from_wire(KeySpace.of(SPEC), found) if isinstance(found, dict) else None,
        lambda: Placement.balance(KeySpace.of(SPEC), 2, 16).to_wire(),
    ),
    "an error": _plain(
        lambda found: from_wire(found["code"], found["text"], found["facts"]) if _is_error(found) else None,
        lambda: ERROR,
    ),
    "plain data": Parser(
        feed=lambda data, _: plain.unpack(data), good=lambda: [plain.pack([1, {"a": b"b"}, 1.5, None])]
    ),
    "a message in a host": Parser(feed=lambda data, _: host_messages.decode(data), good=_host_messages),
    "recorded spans": Parser(feed=lambda data, _: ring.unpack(data), good=_ring),
    "a line of a launcher": Parser(
        feed=lambda data, _: far.decode(data), good=lambda: [far.encode({"do": "start", "args": [1, "a"]})]
    ),
    "a file of a launcher": _text(far.unpack, "aGVsbG8=", refuses=(PSError,)),
    "the answer of a probe": Parser(
        feed=_answer,
        good=lambda: [b"motd\n" + f'{MARK}{{"number": 0, "answer": {{"cores": 2}}}}\n'.encode()],
        refuses=(ProbeError,),
    ),
    # files
    "a manifest": Parser(feed=_sealed_manifest, good=lambda: [_manifest()]),
    "a manifest as it is": Parser(feed=lambda data, _: Manifest.from_bytes("here", data), good=lambda: [_manifest()]),
    "the state of a shard": _part_of(_dense, "state"),
    "the slices of a shard": _part_of(_dense, "-model-"),
    "the state of a shard of tables": _part_of(_sparse, "state"),
    "the rows of a shard": _part_of(_sparse, "-rows-"),
    "rows of a table": Parser(
        feed=_file("t.safetensors", _table_rows).feed, good=lambda: [_table_file()]
    ),
    "the keys of nodes": _one_key(keyring.CLUSTER_PUBLIC),
    "the secret of nodes": _one_key(keyring.CLUSTER_SECRET),
    "the key of workers": _one_key("worker.key"),
    "whom nodes let in": _one_key(keyring.AUTHORIZED),
    "a job's secret": _file("secret", lambda place: identity.read_job_secret(place / "secret"), b"s" * 32),
    "a configuration": _file("cluster.toml", _configuration, CONFIGURATION, refuses=(PSError, click.ClickException)),
    "the state of a cluster": _file(f"{state.FOLDER}/{state.FILE}", state.read_state, STATE),
    "what is kept of a page": _file(PAGE, read_page, b'{"url": "http://127.0.0.1:5/", "port": 5, "token": "t"}'),
    "a trace": _file("trace.json", lambda place: merge.load(place / "trace.json"), MERGED),
    "a hostfile": Parser(
        feed=lambda data, _: hosts.read_hostfile(data.decode(errors="surrogateescape")), good=lambda: [HOSTFILE]
    ),
    # texts
    "the environment": Parser(feed=_variables, good=lambda: VARIABLES),
    "hosts": _text(hosts.read_hosts, "host1:4,me@host2:4,[fd00::7]:2"),
    "a token": Parser(
        feed=lambda data, _: keyring.Keys.of_token(data.decode(errors="surrogateescape")),
        good=lambda: [_keys()["token"]],
    ),
    "an endpoint": _text(endpoints.check_peer, "tcp://head:5570", "tcp://[fd00::1]:5570", "ipc:///run/z"),
    "where to bind": _text(partial(identity.check_bind, insecure=False), "tcp://127.0.0.1:0", "tcp://[::1]:5570"),
    "ports": _text(endpoints.parse_ports, "5571-5580", "5571"),
    "a codec": _text(codecs.parse, "raw", "topk:fraction=0.01", "bf16"),
    "a device": _text(device.parse, "cuda:1", "auto"),
    "a size": _text(lambda text: settings.Size().convert(text, None, None), "8GB", "1.5MiB", "512",
                    refuses=(click.ClickException,)),
    "how often to save": _text(partial(cadence, "every"), "5min", "90s", "500steps"),
    "since when": _text(lambda text: lines.parse_since(text, NOW), "1h30m", "2025-11-21T01:24", "01:24"),
    "a line of a log": _text(
        _log, "2026-11-27 07:00:00.123 worker-1 warning: it is late [step=3 job=\"a b\"]",
        '{"time": "2026-11-27T07:00:00+00:00", "level": "INFO", "node": "w", "message": "m", "step": 3}',
    ),
}  # fmt: skip


def _is_error(found: Any) -> bool:
    """Whether the schema of an `Error` takes it."""
    return (
        isinstance(found, dict)
        and type(found.get("code")) is int
        and type(found.get("text")) is str
        and isinstance(found.get("facts"), dict)
        and all(type(fact) in (str, int, float) for fact in found["facts"].values())
    )
