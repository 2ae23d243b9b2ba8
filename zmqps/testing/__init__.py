"""Tools for testing what is built on zmqps: a deterministic simulator of whole clusters."""

from zmqps.testing.asynchronous import AsyncTraining
from zmqps.testing.bounded import BoundedTraining
from zmqps.testing.engine import Node, Program
from zmqps.testing.network import Faults
from zmqps.testing.simulation import Report, Simulation, SimulationError
from zmqps.testing.synchronous import SyncTraining
from zmqps.testing.training import Training

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
