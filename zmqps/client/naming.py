"""Names of parameters in a script: the known ones, and the nearest match for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

from zmqps import checks
from zmqps.core.job.spec import MAX_NAME_CHARS
from zmqps.errors import OptimizerError, UnknownParameterError, listed
from zmqps.optim import OptimizerSpec, make_kernel, unused
from zmqps.optim.registry import BUILTIN

#: How many known names an error lists.
MOST_TOLD = 8


def check_names(names: Iterable[str], index: Mapping[str, int]) -> list[int]:
    """Return the parameters' numbers; raise `UnknownParameterError` with the nearest known name."""
    numbers = []
    for name in names:
        number = index.get(name) if isinstance(name, str) else None
        if number is None:
            text = name[:MAX_NAME_CHARS] if isinstance(name, str) else checks.shown(name)
            raise UnknownParameterError(name=text, hint=_near(text, index))
        numbers.append(number)
    return numbers


def check_groups(optimizer: OptimizerSpec, names: Sequence[str]) -> None:
    """Raise `OptimizerError` if a group names unknown parameters, or the rule suits none."""
    if names and optimizer.name in BUILTIN:  # other rules may be installed only on the servers
        make_kernel(optimizer.rules(names)[0][0])
    if (found := unused(optimizer.groups, names)) is None:
        return
    text, is_pattern = found
    wrong = f"no parameter matches {text!r}" if is_pattern else f"there is no parameter {text!r}"
    if is_pattern and "[" in text:
        wrong += " (brackets make it match one character of several: names=[...] takes exact names)"
    raise OptimizerError(f"group: {wrong}; {_near(text, names)}")


def _near(text: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(text, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"the job has {listed(list(map(repr, list(names)[:MOST_TOLD])), MOST_TOLD, len(names))}"
