"""Every codec with every optimizer, in every mode, through the real machines and the real wire encoding: the bits of a
reference in plain numpy, although two workers push at once and messages are late, split, twice or out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.codecs.cases import SPECS as CODECS
from tests.modes import MODES
from tests.optim.specs import SPECS as OPTIMIZERS
from tests.reference import Array, Place, Reference, brought, odd_parameters
from tests.simulator import Faults, Node, Simulation
from tests.simulator.engine import Program
from tests.simulator.jobs.training import ReferenceRules, Training, loaded_shard
from tests.tables import for_each, one_in
from zmqps import codecs
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.messages import Load, Message, Push, Values
from zmqps.core.protocol.wire import encode
from zmqps.core.server.builds import Room
from zmqps.core.server.shard import Shard
from zmqps.core.worker.operations import Attached, EnterBarrier, Exchange, Finish, Join, StartJob
from zmqps.core.worker.transfer import PullTransfer, Source, Target, plan
from zmqps.core.worker.transfer import PushTransfer as Pushing
from zmqps.optim import OptimizerSpec

SLICE_NBYTES = 4096
PARAMETERS = odd_parameters(SLICE_NBYTES)
#: Late, twice and out of order; and now and then a broken connection, after which requests are sent again.
FAULTS = Faults(delay=0.01, duplication=0.1, reordering=0.2, loss=0.002)
FOR_PULLS = [codec for codec in CODECS if not codecs.parse(codec).error_feedback]
STEPS = 4
TIMEOUT = 120.0


@dataclass
class Pulled:
    """What one pull brought, and of which versions."""

    transfer: Exchange
    out: list[Array | None]


class RecordingShard(Shard):
    """A shard that notes whose push changed which slices, in the order in which that happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arrived: list[tuple[str, list[int]]] = []
        self.commits: list[list[bytes]] = []
        self.dense.push = self._noted(self.dense.push)  # type: ignore[method-assign]

    def _noted(self, push: Any) -> Any:
        def noted(parts: Any, payload: Any, worker: str, terms: Any = (), **options: Any) -> Any:
            done = push(parts, payload, worker, terms, **options)
            self.arrived.append((worker.split()[0], [index for index, _, _ in parts]))
            return done

        return noted

    def commit(self, step, contributors, *options, **flags):
        super().commit(step, contributors, *options, **flags)
        self.commits.append([contributor[0] for contributor in contributors])


class MatrixTraining(Training):
    """Two workers push and pull in every way there is; `check_end` repeats it all in numpy and compares bits.

    Parameters
    ----------
    optimizer
        The job's.
    push_codec, pull_codec
        The job's; a call has, as often as not, one of its own.
    mode
        The job's, one of `MODES`.
    seed
        Of what the workers do.
    """

    slice_nbytes = SLICE_NBYTES

    def __init__(self, optimizer: OptimizerSpec, push_codec: str, pull_codec: str, mode: str, seed: int) -> None:
        self._rng = Random(seed)
        self._job = JobSpec(
            parameters=PARAMETERS,
            optimizer=optimizer.to_wire(),
            **MODES[mode],
            push_codec=push_codec,
            pull_codec=pull_codec,
        )
        rng = np.random.default_rng(seed)
        self._values = [rng.standard_normal(p.size).astype(p.storage_dtype) for p in PARAMETERS]
        self._pushes: dict[str, list[Pushing]] = {}  # of each worker, in order
        #: Of the messages that a worker sent a server of a slice, in order.
        self._seqs: dict[tuple[str, str, int], list[int]] = {}
        self._freed: dict[str, RecordingShard] = {}  # by server
        self._pulled: list[Pulled] = []
        self._incarnations: dict[bytes, str] = {}

    def job(self) -> tuple[JobSpec, list[Array]]:
        return self._job, self._values

    def shard(self, job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
        return RecordingShard(placement, index, rules, synchronous=job.mode == "sync")

    def note(self, sender: Node, receiver: str, message: Message) -> None:
        """Note the first sending of a push."""
        if isinstance(message, Push):
            for index, _, _ in message.parts:
                seqs = self._seqs.setdefault((sender.name, receiver, index), [])
                if message.seq not in seqs:
                    seqs.append(message.seq)

    def program(self, simulation: Simulation, worker: Node) -> Program:
        self._incarnations[worker.identity.incarnation] = worker.name
        pushes = self._pushes[worker.name] = []
        yield Join(0.0), TIMEOUT
        attached: Attached = yield StartJob(0.0, job=self._job, values=self._values), TIMEOUT
        for step in range(STEPS):
            for kind in self._kinds():
                transfer = self._transfer(kind, attached, worker.number, step)
                yield transfer, TIMEOUT
                if kind != "pull":
                    pushes.append(transfer.push)
                if kind != "push":
                    self._pulled.append(Pulled(transfer, list(transfer.pull.target.arrays)))
        yield EnterBarrier(0.0, barrier="end"), TIMEOUT
        yield Finish(0.0), TIMEOUT

    def _kinds(self) -> Sequence[str]:
        if self._job.mode == "sync":
            return ["push", "pull"]
        return self._rng.choice([["push_pull"], ["push", "pull"], ["push"], ["pull", "push_pull"]])

    def _transfer(self, kind: str, attached: Attached, worker: int, step: int) -> Exchange:
        rng, synchronous = self._rng, self._job.mode == "sync"
        some = frozenset(number for number in range(len(PARAMETERS)) if rng.random() < 0.7)
        everything = synchronous or rng.random() < 0.5
        chosen = frozenset(range(len(PARAMETERS))) if everything else some
        numbers = np.random.default_rng([worker, step, rng.randrange(1 << 30)])
        dtypes = ("float32", "float64", "float16")

        def array(number: int) -> Array | None:
            if number not in chosen:
                return None
            scale = 10.0 ** numbers.uniform(-4, 1)
            return (scale * numbers.standard_normal(PARAMETERS[number].size)).astype(rng.choice(dtypes))

        cargoes = plan(attached.placement, None if everything else some)
        source = Source(arrays=[array(n) for n in range(len(PARAMETERS))] if kind != "pull" else ())
        out = [np.full(p.size, np.nan, p.storage_dtype) if n in chosen else None for n, p in enumerate(PARAMETERS)]
        push = Pushing(cargoes=cargoes, source=source, whole=everything, atomic=kind != "pull" and rng.random() < 0.3)
        source.codec = rng.choice([self._job.push_codec, rng.choice(CODECS)])
        target = Target(arrays=out, codec=rng.choice([self._job.pull_codec, rng.choice(FOR_PULLS)]))
        push.examples = rng.choice([1, 3]) if synchronous else 1
        return Exchange(
            push=push if kind != "pull" else None,
            pull=PullTransfer(cargoes=cargoes, target=target, atomic=push.atomic) if kind != "push" else None,
        )

    # --- the same in numpy ---------------------------------------------------------------------

    def check_freed(self, simulation: Simulation, server: Node) -> None:
        shard = loaded_shard(server)
        if shard is not None:
            assert isinstance(shard, RecordingShard)
            self._freed[server.name] = shard

    def check_end(self, simulation: Simulation) -> None:
        assert all(worker.finished for worker in simulation.workers)
        shards = list(self._freed.values())
        names = {shard.index: name for name, shard in self._freed.items()}
        assert len(shards) == len(simulation.servers)
        reference = Reference(self._job, shards[0].placement, self._values)
        arrives = self._travel(reference, names)
        for shard in shards:
            if self._job.mode == "sync":
                self._commit(reference, shard, arrives)
                continue
            for worker, indices in shard.arrived:
                for index in indices:
                    reference.apply((shard.index, index), *next(arrives[worker, (shard.index, index)]))
        for shard in shards:
            for state in shard.slices:
                cell = reference.cells[shard.index, state.slice.index]
                assert state.version == len(cell.history) - 1
                assert state.value.tobytes() == cell.values.tobytes()
                assert [s.tobytes() for s in state.slots] == [s.tobytes() for s in cell.slots]
        assert all(next(rest, None) is None for rest in arrives.values()), "a push was not applied"
        for pulled in self._pulled:
            self._compare(reference, pulled)

    def _travel(
        self, reference: Reference, names: dict[int, str]
    ) -> dict[tuple[str, Place], Iterator[tuple[Array, set[int]]]]:
        """Return what arrives of each worker's pushes for each slice, in the order of the worker."""
        arrives: dict[tuple[str, Place], list[tuple[Array, set[int]]]] = {}
        for number, (worker, pushes) in enumerate(self._pushes.items()):
            used: dict[Place, count[int]] = {}
            for transfer in pushes:
                parameters = brought(transfer.source.arrays)
                for place in reference.places(parameters):
                    seq = self._seqs[worker, names[place[0]], place[1]][next(used.setdefault(place, count()))]
                    nbytes = self._nbytes(transfer, place)
                    gradient = reference.travelled(
                        number, place, transfer.source.arrays, transfer.source.codec, nbytes, seq
                    )
                    arrives.setdefault((worker, place), []).append((gradient, parameters))
        return {key: iter(value) for key, value in arrives.items()}

    @staticmethod
    def _nbytes(transfer: Pushing, place: Place) -> int | None:
        return sum(cargo.nbytes for cargo in transfer.cargoes[place[0]]) if transfer.atomic else None

    def _commit(
        self,
        reference: Reference,
        shard: RecordingShard,
        arrives: dict[tuple[str, Place], Iterator[tuple[Array, set[int]]]],
    ) -> None:
        for step, contributors in enumerate(shard.commits):
            workers = [self._incarnations[incarnation] for incarnation in contributors]
            examples = [self._pushes[worker][step].examples for worker in workers]
            for state in shard.slices:
                place = shard.index, state.slice.index
                came = [next(arrives[worker, place])[0] for worker in workers]
                total = mean(came, examples)
                reference.apply(place, total, set(range(len(PARAMETERS))))

    def _compare(self, reference: Reference, pulled: Pulled) -> None:
        push, pull = pulled.transfer.push, pulled.transfer.pull
        parameters = brought(pulled.out)
        versions = {(c.slice.shard, c.slice.index): version for c, version in pull.target.versions.items()}
        places = reference.places(parameters)
        assert set(versions) == set(places)
        for place in places:
            version, index, nbytes = versions[place], place[1], None
            if push is not None and push.atomic:
                nbytes = self._nbytes(push, place)
                first = push.cargoes[place[0]][0].slice.index
                seed = versions[place[0], first] << 32 | first
            else:
                seed = version << 32 | index
            expected = reference.read(place, version, parameters, pull.target.codec, nbytes, seed)
            assert reference.cells[place].of(pulled.out, parameters).tobytes() == expected.tobytes()


def mean(gradients: Sequence[Array], examples: Sequence[int]) -> Array:
    """Return the mean as servers round it: of equal shares the sum is divided, others are weighted first."""
    scalar, whole = gradients[0].dtype.type, sum(examples)
    equal = min(examples) == max(examples)
    total = gradients[0] if equal else gradients[0] * scalar(examples[0] / whole)
    for gradient, number in zip(gradients[1:], examples[1:], strict=True):
        total = total + (gradient if equal else gradient * scalar(number / whole))
    return total * scalar(1.0 / len(gradients)) if equal else total


def split(rng: Random, message: Message) -> list[Any]:
    """Encode a message with its payload in other frames: raw arrays in more, blobs of a codec in one."""
    if not isinstance(message, Push | Values | Load) or not message.payload:
        return encode(message)
    payload = [np.frombuffer(buffer, np.uint8) for buffer in message.payload if memoryview(buffer).nbytes]
    if getattr(message, "codec", "raw") != "raw":
        return encode(replace(message, payload=[np.concatenate(payload)]))
    num_parts = len(message.versions if isinstance(message, Values) else message.parts)
    if num_parts == 1:  # of one dtype, so every 8 bytes an element ends
        pieces = []
        for buffer in payload:
            cuts = sorted(8 * rng.randrange(buffer.size // 8 + 1) for _ in range(rng.randrange(4)))
            pieces += np.split(buffer, cuts)
        payload = pieces
    return encode(replace(message, payload=payload))


def train(optimizer: str, push_codec: str, pull_codec: str, mode: str, seed: int, monkeypatch) -> None:
    rng = Random(seed)
    monkeypatch.setattr("tests.simulator.engine.encode", lambda message: split(rng, message))
    training = MatrixTraining(OPTIMIZERS[optimizer], push_codec, pull_codec, mode, seed)
    simulation = Simulation(seed, servers=2, workers=2, faults=FAULTS, training=training, validate=False)
    simulation.on_send.append(training.note)
    simulation.run()


@pytest.mark.parametrize("number", one_in(4, range(len(OPTIMIZERS))))
def test_each_optimizer_with_a_codec_of_the_job_and_others_by_call(number: int, monkeypatch) -> None:
    optimizer = list(OPTIMIZERS)[number]
    push_codec, pull_codec = CODECS[number % len(CODECS)], FOR_PULLS[number % len(FOR_PULLS)]
    train(optimizer, push_codec, pull_codec, [*MODES][number % 3], number, monkeypatch)


@pytest.mark.slow
@for_each("push_codec", CODECS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_codec_with_every_optimizer(optimizer: str, push_codec: str, monkeypatch) -> None:
    first = list(OPTIMIZERS).index(optimizer) + list(CODECS).index(push_codec)  # each meets all three somewhere
    for seed, pull_codec in enumerate(FOR_PULLS):
        train(optimizer, push_codec, pull_codec, [*MODES][(first + seed) % 3], 1000 + seed, monkeypatch)
