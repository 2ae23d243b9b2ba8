"""The simulator: whole clusters on a simulated clock and network, whose every fault is replayed from a seed."""

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.bounded import BoundedTraining
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training
from tests.simulator.network import Faults
from tests.simulator.simulation import Report, Simulation, SimulationError

__all__ = [
    "AsyncTraining",
    "BoundedTraining",
    "Faults",
    "Node",
    "Program",
    "Report",
    "Simulation",
    "SimulationError",
    "SyncTraining",
    "Training",
]
