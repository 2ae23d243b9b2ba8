"""Tools for testing what is built on zmqps: a deterministic simulator of whole clusters."""

from zmqps.testing.engine import Node, Program
from zmqps.testing.network import Faults
from zmqps.testing.simulation import Report, Simulation, SimulationError
from zmqps.testing.training import AsyncTraining, Training

__all__ = ["AsyncTraining", "Faults", "Node", "Program", "Report", "Simulation", "SimulationError", "Training"]
