"""Experiments that reproduce what the field says about parameter servers; see docs/experiments.md.

All but `local_steps` run the real core on the simulated clock of `tests.simulator`: a worker four times
slower is exactly that, on any machine, and a run gives the same figures every time.
"""
