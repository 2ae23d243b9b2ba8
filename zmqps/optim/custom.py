"""An optimizer of the user's own, by name: its class is installed on the servers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from .groups import Group
from .options import Hyper, option
from .registry import BUILTIN
from .schedules import Rate
from .spec import NAME, OptimizerSpec, Rule


@dataclass(frozen=True)
class Custom(OptimizerSpec):
    """An optimizer whose class need not be installed here; made by `custom`."""

    _: KW_ONLY
    name: str = option(NAME)  # type: ignore[misc]
    options: Mapping[str, float | bool] = option(Hyper())

    @property
    def hyper(self) -> dict[str, float | bool]:
        return {"weight_decay": self.weight_decay, **self.options}

    def rules(self, names: Sequence[str], workers: int = 1) -> tuple[tuple[Rule, ...], list[int]]:
        return self.from_wire(self.to_wire()).rules(names, workers)


def custom(
    name: str,
    learning_rate: Rate = 1e-3,
    *,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
    **hyper: float | bool,
) -> OptimizerSpec:
    """Return a custom optimizer, by the name under which its package registered it on the servers.

    Its class, a subclass of `zmqps.optim.Rule`, never travels: it is installed on every server in a
    package that declares an entry point in group ``zmqps.optimizers``. It need not be installed here.

    Parameters
    ----------
    name : str
        Name of the entry point.
    learning_rate : float or Schedule
    weight_decay, clip_value, clip_norm, count, groups
        As in every optimizer.
    **hyper : float or bool
        The fields of its class.

    Examples
    --------
    >>> spec = custom("sign_descent", learning_rate=1e-3)
    """
    common: dict[str, Any] = {"clip_value": clip_value, "clip_norm": clip_norm, "count": count, "groups": groups}
    made = Custom(learning_rate, weight_decay=weight_decay, name=name, options=hyper, **common)
    return made.from_wire(made.to_wire()) if made.name in BUILTIN else made
