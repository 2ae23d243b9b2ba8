"""Optimizers, learning-rate schedules and parameter groups; on the servers, the kernels that run them.

A training script names an optimizer with its numbers, as plain data::

    from zmqps.optim import adamw, cosine_decay, group

    adamw(cosine_decay(1e-3, decay_steps=10_000), groups=[group("*.bias", weight_decay=0.0)])

and the servers, which know the equations, apply it.
"""

from .custom import custom
from .decays import (
    cosine_decay,
    exponential_decay,
    linear_decay,
    one_cycle,
    piecewise,
    polynomial_decay,
    step_decay,
)
from .groups import Group, group, trained, unused
from .hyperparameters import Hyperparameters
from .kernels import Kernel, all_finite, make_kernel, warm_up
from .options import flag, number
from .rules.adadelta import adadelta
from .rules.adagrad import adagrad
from .rules.adam import adam
from .rules.adamw import adamw
from .rules.amsgrad import amsgrad
from .rules.ftrl import ftrl
from .rules.lion import lion
from .rules.rmsprop import rmsprop
from .rules.rowwise_adagrad import rowwise_adagrad
from .rules.sgd import sgd
from .scaling import scale_linearly
from .schedules import Schedule, constant, linear_warmup
from .spec import OptimizerSpec, Rule, slots_of

__all__ = [
    "Group",
    "Hyperparameters",
    "Kernel",
    "OptimizerSpec",
    "Rule",
    "Schedule",
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "all_finite",
    "amsgrad",
    "constant",
    "cosine_decay",
    "custom",
    "exponential_decay",
    "flag",
    "ftrl",
    "group",
    "linear_decay",
    "linear_warmup",
    "lion",
    "make_kernel",
    "number",
    "one_cycle",
    "piecewise",
    "polynomial_decay",
    "rmsprop",
    "rowwise_adagrad",
    "scale_linearly",
    "sgd",
    "slots_of",
    "step_decay",
    "trained",
    "unused",
    "warm_up",
]
