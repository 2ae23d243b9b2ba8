"""The simulator itself: it must see what it is there to see, and replay it."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import numpy as np
import pytest

import tests.simulator
from tests.simulator import AsyncTraining, Faults, Node, Program, Simulation, SimulationError
from tests.simulator.network import Network, Packet
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulate import main
from zmqps.core.node.member import Member
from zmqps.core.server.ledger import Ledger
from zmqps.core.worker.asked import Asked
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.operations import EnterBarrier, Join
from zmqps.core.worker.session import SessionKernel

#: Numpy in the role of a GPU, for whose copies threads wait; no simulation has one.
NOT_THE_SIMULATOR = {"host_device.py"}


def test_it_imports_no_io_library() -> None:
    names = {
        name.split(".")[0]
        for path in Path(tests.simulator.__file__).parent.glob("*.py")
        if path.name not in NOT_THE_SIMULATOR
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert not names & {"zmq", "asyncio", "socket", "threading", "subprocess", "multiprocessing"}


# --- what it must see ---------------------------------------------------------------------------


def test_it_sees_a_push_that_is_applied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "look_up", lambda self, seq: None)
    monkeypatch.setattr(Ledger, "record", lambda self, seq, result: None)
    with pytest.raises(SimulationError, match="applied twice"):
        Simulation(1, faults=Faults(duplication=0.3)).run()


def test_it_sees_a_push_that_is_acknowledged_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "look_up", lambda self, seq: ((1,), (0,)) if seq == 3 else self.results.get(seq))
    with pytest.raises(SimulationError, match=r"is missing|does not see"):
        Simulation(1).run()


def test_it_sees_an_operation_that_is_never_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionKernel, "_give_up", lambda self, operation, now: [])
    monkeypatch.setattr(Asked, "answer", lambda self, message, now: [])
    with pytest.raises(SimulationError, match=r"beyond the deadline|spins"):
        Simulation(1).run()


def test_it_sees_a_timer_that_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "on_deadline", lambda self, now: [])
    with pytest.raises(SimulationError, match="spins"):
        Simulation(1, training=AsyncTraining(compute_s=2.0)).run()


def test_it_sees_a_window_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.worker.connections.link.WINDOW_NBYTES", 256)
    pump = Link.pump

    def greedy(self: Link, now: float) -> list:  # type: ignore[type-arg]
        nbytes, self.in_flight.nbytes = self.in_flight.nbytes, -(1 << 30)
        actions = pump(self, now)
        self.in_flight.nbytes += nbytes + (1 << 30)
        return actions

    monkeypatch.setattr(Link, "pump", greedy)
    with pytest.raises(SimulationError, match=r"WINDOW_NBYTES|AssertionError"):
        Simulation(1).run()


def test_it_sees_a_buffer_that_is_written_to_while_it_is_read() -> None:
    array = np.zeros(4)
    readers: list = []  # type: ignore[type-arg]
    packet = Packet.of([array], [readers])
    assert not readers[0].done
    array[0] = 1.0
    with pytest.raises(AssertionError, match="written to"):
        packet.left()


def test_a_failure_says_its_seed_and_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "on_deadline", lambda self, now: [])
    with pytest.raises(SimulationError, match=r"(?s)seed 4: .*spins.*server-0 .*starts"):
        Simulation(4, training=AsyncTraining(compute_s=2.0)).run()


# --- programs -----------------------------------------------------------------------------------


class Meeting(AsyncTraining):
    """Everybody meets twice; the second time somebody is missing."""

    def program(self, simulation: Simulation, worker: Node) -> Program:
        yield Join(0.0), 5.0
        yield EnterBarrier(0.0, barrier="all"), 5.0
        if worker.number != 0:
            yield 0.5
            yield EnterBarrier(0.0, barrier="some"), 2.0
        else:
            yield 20.0


def test_a_seed_has_the_same_digest_again_also_where_workers_are_notified_of_another_layout() -> None:
    first, again = (SCENARIOS["bounded-scales-freezes"].simulation(41).run() for _ in range(2))
    assert first == again


def test_a_program_waits_for_results_and_gets_errors_raised() -> None:
    report = Simulation(1, servers=1, workers=3, training=Meeting(restart=False)).run()
    assert report.outcomes == {"DeadlineError": 2, "barrier": 3, "connect": 3}
    assert report.seconds > 20.0


# --- the network --------------------------------------------------------------------------------


def network(faults: Faults, seed: int = 1) -> Network:
    return Network(Random(seed), faults, latency=1e-3, bandwidth=1e6)


def test_messages_of_a_connection_stay_in_order_unless_asked_otherwise() -> None:
    for faults, in_order in ((Faults(delay=0.1), True), (Faults(delay=0.1, reordering=0.3), False)):
        n = network(faults)
        connection = n.connect("a", "b", (b"b", b"a"), False, 0.0)
        times = [time for i in range(50) for time in n.arrivals(connection, 1, 10, i * 1e-3)]
        assert (times == sorted(times)) is in_order


def test_bandwidth_is_shared_by_all_that_a_node_sends() -> None:
    n = network(Faults())
    one, two = (n.connect("a", other, (b"x", b"a"), False, 0.0) for other in "bc")
    assert n.arrivals(one, 1, 1_000_000, 0.0) == [pytest.approx(1.001)]
    assert n.arrivals(two, 1, 1_000_000, 0.0) == [pytest.approx(2.001)]
    assert n.arrivals(one, 0, 1_000_000, 0.0) == [pytest.approx(1.001)], "b has a line of its own"


def test_a_loss_breaks_the_connection_for_a_while() -> None:
    n = network(Faults(loss=1.0))
    connection = n.connect("a", "b", (b"b", b"a"), False, 0.0)
    assert n.arrivals(connection, 1, 10, 0.0) == []
    assert connection.life == 1
    n.quiet = True
    assert n.arrivals(connection, 1, 10, 0.01) == []
    assert len(n.arrivals(connection, 0, 10, connection.up_at)) == 1


def test_a_partition_delays_or_loses_what_crosses_it_and_nothing_else() -> None:
    fates = set()
    for seed in range(20):
        n = network(Faults(), seed)
        crossing, inside = n.connect("a", "b", (b"b", b"a"), False, 0.0), n.connect("c", "b", (b"b", b"c"), False, 0.0)
        n.partition(["a"], 5.0, 0.0)
        times = n.arrivals(crossing, 1, 10, 1.0)
        fates.add(bool(times))
        assert all(time > 5.0 for time in times)
        assert n.arrivals(inside, 1, 10, 1.0)[0] < 1.1
        assert n.arrivals(crossing, 1, 10, 6.0)[0] < 6.1
        late = n.connect("a", "c", (b"c", b"a"), False, 2.0)
        assert all(time > 5.0 for time in n.arrivals(late, 1, 10, 2.0))
    assert fates == {True, False}


# --- the command line ---------------------------------------------------------------------------


def test_the_command_reports_messages_bytes_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("async", "bounded", "sync"):
        assert main(["--mode", mode, "--workers", "2", "--servers", "1", "--seed", "1", "--steps", "2"]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert lines["steps"] == "4"
        assert set(lines) == {"steps", "messages", "bytes", "simulated", "processor", "outcomes", "digest"}


def test_a_cluster_of_some_size_may_have_faults() -> None:
    assert main(["--workers", "2", "--faults", "crashes", "--seed", "3", "--checks"]) == 0


def test_the_command_runs_a_range_of_seeds_over_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.simulator.seeds.CHUNK", 2)
    assert main(["--seeds", "0:6", "--jobs", "2"]) == 0
    assert "6 of 6 seeds passed" in capsys.readouterr().out


def test_a_seed_that_fails_comes_with_the_command_that_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: AsyncTraining, simulation: Simulation, node: Node) -> None:
        assert simulation.now < 1.0, "not good"

    monkeypatch.setattr(AsyncTraining, "check", fail)
    monkeypatch.setattr("tests.simulator.seeds.PROGRESS_S", 0.0)
    assert main(["--scenario", "async-crashes", "--seeds", "5:7", "--jobs", "1"]) == 1
    printed = capsys.readouterr()
    assert "2 of 2 seeds, 2 failed" in printed.out
    command, *arguments = printed.err.splitlines()[1].split("simulate ")
    assert command.endswith("replay: python -m tests.simulator.")
    assert main(arguments[0].split()) == 1
    again = capsys.readouterr().err
    assert again.startswith("seed 5: AssertionError('not good")
    assert "coordinator  starts" in again, "it shows the last events"


def test_a_defect_in_a_machine_fails_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_down(*args: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("zmqps.core.worker.transfers.Transfers.handle", break_down)
    assert main(["--scenario", "async-crashes", "--seeds", "5:6", "--jobs", "1"]) == 1
    assert "seed 5: a defect" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["7", "7:7", "a:b"])
def test_a_range_without_seeds_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", text])
    assert "is not a range FROM:TO of seeds" in capsys.readouterr().err


@pytest.mark.processes
def test_a_sweep_prints_and_plots_how_a_step_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("tests.simulator.growth.WORKERS", (2, 4, 8))
    assert main(["--sweep", str(tmp_path / "new" / "growth.png"), "--workers", "4"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["mode", "workers", "servers", "messages"]
    assert [row.split()[:3] for row in rows] == [[m, n, "2"] for m in ("async", "bounded", "sync") for n in ("2", "4")]
    assert (tmp_path / "new" / "growth.png").read_bytes().startswith(b"\x89PNG")
