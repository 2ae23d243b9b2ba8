"""Tools for testing code built on zmqps: a simulator of whole clusters, and numpy in the role of a GPU."""

from zmqps.testing.device import HostDevice
from zmqps.testing.engine import Node, Program
from zmqps.testing.jobs.asynchronous import AsyncTraining
from zmqps.testing.jobs.bounded import BoundedTraining
from zmqps.testing.jobs.synchronous import SyncTraining
from zmqps.testing.jobs.training import Training
from zmqps.testing.network import Faults
from zmqps.testing.simulation import Report, Simulation, SimulationError

__all__ = [
    "AsyncTraining",
    "BoundedTraining",
    "Faults",
    "HostDevice",
    "Node",
    "Program",
    "Report",
    "Simulation",
    "SimulationError",
    "SyncTraining",
    "Training",
]
