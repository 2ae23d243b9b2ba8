"""An optimizer's equation as the body of one CUDA kernel.

The equation is called once with symbols in place of arrays; each operation on them writes a statement
down. So a whole update reads and writes every array once, where the same expression of arrays would do
it for each operation. Statements are in the order of the equation and none is contracted, so the result
is that of `numpy`, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptimizerError
from .spec import Rule

#: numpy's dtype -> the type of CUDA C.
TYPES = {"float32": "float", "float64": "double"}

#: numpy's functions, with numpy's ways with NaN and zero.
PREAMBLE = """
template <typename T> __device__ T minimum(T a, T b) { return a < b || a != a ? a : b; }
template <typename T> __device__ T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x; }
template <typename T> __device__ T where(bool c, T a, T b) { return c ? a : b; }
"""
#: What an equation may call of its namespace, and what that is called here.
FUNCTIONS = {
    **{name: name for name in ("sqrt", "minimum", "maximum", "sign", "where", "exp", "log")},
    **{"abs": "fabs", "absolute": "fabs"},
}


class Source(NamedTuple):
    """A kernel over elements, for `zmqps.gpu.device.Device.elementwise`."""

    name: str
    inputs: str
    outputs: str
    body: str


class Symbol:
    """A value of one element; what is done with it is written down."""

    __slots__ = ("_body", "text")

    #: Of two operands numpy's own numbers come to this one, too.
    __array_ufunc__ = None

    def __init__(self, body: Body, text: str) -> None:
        self._body = body
        self.text = text

    def __add__(self, other: Any) -> Symbol:
        return self._body.infix(self, "+", other)

    def __radd__(self, other: Any) -> Symbol:
        return self._body.infix(other, "+", self)

    def __sub__(self, other: Any) -> Symbol:
        return self._body.infix(self, "-", other)

    def __rsub__(self, other: Any) -> Symbol:
        return self._body.infix(other, "-", self)

    def __mul__(self, other: Any) -> Symbol:
        return self._body.infix(self, "*", other)

    def __rmul__(self, other: Any) -> Symbol:
        return self._body.infix(other, "*", self)

    def __truediv__(self, other: Any) -> Symbol:
        return self._body.infix(self, "/", other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self._body.infix(other, "/", self)

    def __neg__(self) -> Symbol:
        return self._body.value(f"-{self.text}")

    def __lt__(self, other: Any) -> Symbol:
        return self._body.infix(self, "<", other, "bool")

    def __le__(self, other: Any) -> Symbol:
        return self._body.infix(self, "<=", other, "bool")

    def __gt__(self, other: Any) -> Symbol:
        return self._body.infix(self, ">", other, "bool")

    def __ge__(self, other: Any) -> Symbol:
        return self._body.infix(self, ">=", other, "bool")

    def __bool__(self) -> bool:
        raise OptimizerError("an equation is the same for every element; choose by xp.where, not by if")


class Body:
    """Statements, and the namespace an equation is given."""

    def __init__(self, ctype: str) -> None:
        self.lines: list[str] = []
        self._ctype = ctype

    def value(self, expression: str, ctype: str | None = None) -> Symbol:
        """Write an expression down; return what it is called."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"const {ctype or self._ctype} {name} = {expression};")
        return Symbol(self, name)

    def infix(self, a: Any, operator: str, b: Any, ctype: str | None = None) -> Symbol:
        return self.value(f"{self.text(a)} {operator} {self.text(b)}", ctype)

    def text(self, value: Any) -> str:
        """Return an operand; a number takes the arrays' dtype, as in numpy."""
        if isinstance(value, Symbol):
            return value.text
        if isinstance(value, Real) and math.isfinite(value):
            return f"{self._ctype}({float(value)!r})"
        raise OptimizerError(f"{value!r:.40} cannot be used in an equation")

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        if name not in FUNCTIONS:
            raise OptimizerError(f"xp.{name} is not among {', '.join(FUNCTIONS)}, which kernels on a GPU are made of")
        return lambda *operands: self.value(f"{FUNCTIONS[name]}({', '.join(map(self.text, operands))})")


def source(rule: Rule, dtype: np.dtype[Any]) -> Source:
    """Return the kernel of a rule: inputs ``w, g``, gradient scalars and scalars; outputs ``out`` and the slots.

    Raises
    ------
    OptimizerError
        The equation uses something that cannot be written down; `ArrayKernel` computes any.
    """
    ctype = TYPES[dtype.name]
    body = Body(ctype)
    num_scalars = len(rule.scalars(1))
    limits = [Symbol(body, f"p{i}") for i in range(len(rule.gradient_scalars()))]
    scalars = [Symbol(body, f"q{i}") for i in range(num_scalars)]
    w = body.value("w")
    slots = [body.value(f"s{i}") for i in range(len(rule.slots))]  # read before any of them is written
    d = rule.gradient(body)(w, Symbol(body, "g"), *limits)
    results = rule.equation(body)(w, d, *slots, *scalars)
    outputs = ["out", *(f"s{i}" for i in range(len(slots)))]
    stores = [f"{target} = {body.text(result)};" for target, result in zip(outputs, results, strict=True)]
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in rule.name)
    inputs = ["w", "g", *(symbol.text for symbol in (*limits, *scalars))]
    return Source(
        f"zmqps_{plain}_{dtype.name}",
        _declared(dtype, inputs),
        _declared(dtype, outputs),
        "\n".join([*body.lines, *stores]),
    )


def can_write(rule: Rule) -> bool:
    """Whether there is a `source` for a rule."""
    try:
        source(rule, np.dtype(np.float32))
    except OptimizerError:
        return False
    return True


def _declared(dtype: np.dtype[Any], names: Sequence[str]) -> str:
    return ", ".join(f"{dtype.name} {name}" for name in names)
