"""Kernels written as CUDA C, run by numpy: every statement of a body is also one of Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

FUNCTIONS = {
    **{name: getattr(np, name) for name in ("minimum", "maximum", "sign", "where", "sqrt", "exp", "log", "fabs")},
    **{"float": np.float32, "double": np.float64},
}


def elementwise(name: str, inputs: str, outputs: str, body: str, preamble: str) -> Callable[..., None]:
    """Return the kernel, as `zmqps.gpu.device.Device.elementwise` does."""
    assert name.isidentifier()
    names = [declared.split()[1] for declared in f"{inputs}, {outputs}".split(", ")]
    first_output = len(inputs.split(", "))
    statements = re.sub(r"^const \w+ ", "", body, flags=re.MULTILINE).replace(";", "")

    def run(*arguments: Any) -> None:
        values = dict(zip(names, arguments, strict=True))
        # an output is read before it is written, so these are what the kernel finds there
        local = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in values.items()}
        exec(statements, dict(FUNCTIONS), local)
        for key in names[first_output:]:
            values[key][:] = local[key]

    return run
