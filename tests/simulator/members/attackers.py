"""Strangers beside a training: they know what is public, pose as other nodes, and repeat messages.

What they know is what a status, a log or a server's answer shows anybody: incarnations, epochs, names and the numbers
of requests. What they cannot know is what only two ends of a connection know: secrets, tickets and proofs. Where nodes
have keys they know the secrets of members, and what ends jobs, too; but their keys are those of an observer and of
another worker. One of them joins as an observer, as anybody with its key may, and gives orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeVar

from tests.simulator.engine import Node
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.places import ASKED
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Disconnected, Peer, Received
from zmqps.core.protocol.security.guard import proved
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.core.protocol.security.roles import ALLOWS, KeyHolder
from zmqps.core.protocol.wire import decode, encode
from zmqps.core.server.machine import ServerKernel

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

S = TypeVar("S")

#: How often a second one of them does something, until `LAST_S`, and over how many connections.
RATE = 60.0
LAST_S = 30.0
CONNECTIONS = 6
#: How often one that has just said something to the coordinator joins as an observer.
SPIES = 0.1
#: Messages of others that they repeat: the newest.
MAX_HEARD = 32
#: What stands in the state of a checkpoint that an observer asks for: none is made.
PLANTED = "planted by an observer"
#: Their keys, where nodes have some.
OWN = KeyHolder("observer", "spy"), KeyHolder("worker", "mallory")


class Attackers:
    """Sends what strangers may send, in an order of its own, and asserts that nothing comes of it.

    Parameters
    ----------
    simulation
        Where they are.
    seed
        Of their own random numbers: those of the simulation stay as they are.
    job
        The name of a job.
    keyed
        Whether nodes have keys.
    """

    def __init__(self, simulation: SimulatedCluster, seed: int, job: str, *, keyed: bool = False) -> None:
        self._keyed = keyed
        self.num_sent = 0
        self._job = job
        self._simulation = simulation
        self._rng = Random(f"attackers {seed}")
        self._peers = [b"@" + self._rng.randbytes(16) for _ in range(CONNECTIONS)]
        self._heard: deque[list[bytes]] = deque(maxlen=MAX_HEARD)
        self._epochs: set[int] = {1}
        self._spies: dict[bytes, Peer] = {}  # incarnation -> connection
        simulation.on_send.append(self._hear)
        simulation.at(0.0, self._strike)

    def check(self, node: Node) -> None:
        """Assert that each member that a node knows speaks over its own connection."""
        machine = node.machine
        if isinstance(machine, CoordinatorMachine):
            known = {who: member.peer for who, member in machine.membership.members.items()}
        elif isinstance(machine, ServerKernel):
            known = {who: client.peer for who, client in machine.clients.by_incarnation.items()}
        else:
            return
        for who, peer in known.items():
            if self._spies.get(who) == peer:
                continue
            connection = node.connections.get(peer)
            assert connection is not None, f"{node.name} takes a stranger for {who.hex()[:8]}"
            opener = self._simulation.nodes[connection.ends[0]]
            assert opener.identity.incarnation == who, f"{node.name} takes {opener.name} for {who.hex()[:8]}"

    def check_end(self, *, nobody_lost: bool) -> None:
        """Assert that they attacked; and that all members stayed that had no other reason to be lost."""
        assert self.num_sent > CONNECTIONS, "no attack was made"
        assert self._simulation.coordinator.ended.how(self._job) != ASKED, "strangers ended the job"
        if nobody_lost:
            gone = self._simulation.coordinator.membership.gone
            lost = [departure.member.title for departure in gone if departure.how == "lost"]
            assert not lost, f"strangers ended {lost}"

    def _hear(self, sender: Node, to: str, message: m.Message) -> None:
        if isinstance(message, (m.Load, m.Push, m.Pull, m.Arrive, m.Leave, m.Ready, m.Committed)):
            self._heard.append([bytes(frame) for frame in encode(message)])
            self._epochs.add(getattr(message, "epoch", 1))

    def _strike(self) -> None:
        simulation, rng = self._simulation, self._rng
        targets = [node for node in simulation.nodes.values() if node.alive and node.role in ("coordinator", "server")]
        if targets:
            target, peer = rng.choice(targets), rng.choice(self._peers)
            holder = OWN[self._peers.index(peer) % len(OWN)] if self._keyed else None
            message = self._message(target, holder)
            event = Disconnected(peer) if rng.random() < 0.05 else Received(peer, message, holder=holder)
            simulation.note("a stranger", f"{peer[1:5].hex()} to {target.name}: {event!r}"[:200])
            self.num_sent += 1
            simulation.event(target, event)
            if target.role == "coordinator" and rng.random() < SPIES:
                self._spy(target)
        if simulation.now < LAST_S:
            simulation.at(simulation.now + rng.expovariate(RATE), self._strike)

    def _spy(self, coordinator: Node) -> None:
        """Join a job as an observer, ask for what only others may, and leave."""
        rng, simulation = self._rng, self._simulation
        if self._job not in simulation.coordinator.runs or simulation.coordinator.ending is not None:
            return
        peer, who = b"@" + rng.randbytes(16), rng.choice(sorted(simulation.nodes.items()))[1].identity
        spy = replace(
            who, role="observer", job=self._job, incarnation=rng.randbytes(16), name="spy", endpoint="",
            process=b"", index=None, token=b"", secret=rng.randbytes(KEY_NBYTES),
        )  # fmt: skip
        self._spies[spy.incarnation] = peer
        state = {PLANTED: True}
        orders: list[m.Message] = [
            m.Checkpoint(1, "", rng.randint(0, 1), state),
            m.Checkpoint(2, self._job, 0, state, rng.randbytes(KEY_NBYTES)),
            self._end(3),
            m.Scale(4, rng.randint(1, 4)),
            m.Init(5, {"parameters": []}),
        ]
        rng.shuffle(orders)
        for message in (spy.hello(), *orders, m.Leave("closed")):
            simulation.event(coordinator, Received(peer, message, holder=OWN[0] if self._keyed else None))

    def _message(self, target: Node, holder: KeyHolder | None) -> m.Message:
        rng = self._rng
        epoch, request = rng.choice(sorted(self._epochs)), rng.randint(0, 40)
        choices: list[Callable[[], m.Message]] = [
            *[partial(self._hello, target, epoch, holder)] * 3,
            lambda: m.Leave(rng.choice(("finished", "closed"))),
            lambda: decode(rng.choice(self._heard)) if self._heard else m.Leave("closed"),
        ]
        if target.role == "coordinator":
            choices += [
                lambda: rng.choice(
                    (m.Heartbeat({}), m.Enter(request, "end"), m.Init(request, {}), m.Withdraw(request))
                ),
                lambda: rng.choice((m.Arrive(request, rng.randint(0, 5), (1,)), m.Ready(epoch, 1), m.Discarded(epoch))),
                lambda: m.Forgotten(rng.choice(sorted(self._simulation.nodes.items()))[1].identity.incarnation),
                lambda: rng.choice((m.Committed(epoch, rng.randint(0, 5)), m.Error(epoch, 49, "x", {"reason": "x"}))),
                partial(self._end, request),
                lambda: m.Exited(request, self._token(), "killed"),
            ]
        return rng.choice(choices)()

    def _end(self, request: int) -> m.Message:
        nonce, guess = self._rng.randbytes(KEY_NBYTES), self._rng.randbytes(KEY_NBYTES)
        known = self._simulation.coordinator.identity.end_key if self._keyed else b""
        return proved(known, m.EndJob(request, self._job, nonce, guess))

    def _token(self) -> bytes:
        """Return what may be taken for the token of a process: what it is called, or a guess."""
        who = self._rng.choice(sorted(self._simulation.nodes.items()))[1].identity
        return self._rng.choice((who.process, who.incarnation, self._rng.randbytes(KEY_NBYTES)))

    def _hello(self, target: Node, epoch: int, holder: KeyHolder | None) -> m.Message:
        """Return a message that another node might send, without its secrets."""
        rng, there = self._rng, [node.identity for node in self._simulation.nodes.values()]
        roles: tuple[str, ...] = ("worker", "observer")
        if isinstance(target.machine, CoordinatorMachine):  # any process may pose as a node that is not a member there
            there = [who for who in there if who.incarnation in target.machine.membership.members]
            roles = ("worker", "observer", "server")
        if not there:
            return m.Leave("closed")
        who = rng.choice(there)
        if holder is not None:  # they know its secret; or are new, in a role that their key does not allow
            beyond = [role for role in roles if role not in ALLOWS[holder.role]]
            if not beyond or rng.random() < 0.5:
                return replace(who, job=who.job or self._job).hello(epoch=epoch)
            new = replace(who, incarnation=rng.randbytes(16), role=rng.choice(beyond), job=who.job or self._job)
            return new.hello(epoch=epoch)
        secret = rng.choice((bytes(KEY_NBYTES), rng.randbytes(KEY_NBYTES), who.incarnation))
        role = who.role if who.role in roles and rng.random() < 0.5 else rng.choice(roles)
        return replace(who, role=role, job=who.job or self._job).hello(secret, epoch)


def attacked_scenarios(found: Mapping[str, S]) -> Mapping[str, S]:
    """Return scenarios with strangers, made of those without."""
    made = {"async": "async-twisted", "sync": "sync-twisted", "jobs": "jobs-everything"}
    attacked = {f"{mode}-attacked": replace(found[name], attacked=True) for mode, name in made.items()}  # type: ignore[type-var]
    keyed = {f"{mode}-keyed": replace(attacked[f"{mode}-attacked"], keyed=True) for mode in ("async", "jobs")}  # type: ignore[type-var]
    for mode in ("async", "sync"):
        keyed[f"{mode}-saves-keyed"] = replace(found[f"{mode}-saves"], attacked=True, keyed=True)  # type: ignore[type-var]
    return attacked | keyed
