"""A rule for rows of a table as kernels of a GPU, made from its equation as those of `fused` are.

Rows are in *chunks* of 2**shift rows, whose addresses the device has in an array. A chunk has the values of all its
rows, then each slot of all of them, then what is one number a row. A thread does one element: it looks up the chunk of
its row, reads and writes each array there once. A rule with a slot of one number a row takes three kernels, between
which the squares of each row are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import OptimizerError
from . import fused
from .fused import Body, Source, Symbol
from .spec import Rule

PREAMBLE = (
    fused.PREAMBLE
    + """
__device__ float load(size_t chunk, ptrdiff_t at) { return ((const float*)chunk)[at]; }
__device__ void store(size_t chunk, ptrdiff_t at, float x) { ((float*)chunk)[at] = x; }
"""
)
#: Arguments of every kernel over rows: the rows' numbers, and the addresses of the chunks. These count as an output,
#: as what they point to is written.
ROWS, CHUNKS = "raw int64 rows, int64 shift", "raw uint64 chunks"


class RowSources(NamedTuple):
    """The kernels of a rule. Of a rule with a slot of one number a row ``squares`` comes first, then ``state``."""

    update: Source
    squares: Source | None
    state: Source | None


def element(dim: int) -> list[str]:
    """Return statements that name the row of a thread's element (``k`` of the call, ``r`` of the table), and its chunk.

    ``at`` is the element's index in the chunk's values.
    """
    return [
        f"const ptrdiff_t k = i / {dim};",
        *_row(),
        f"const ptrdiff_t at = local * {dim} + i - k * {dim};",
    ]


def _row() -> list[str]:
    return [
        "const ptrdiff_t r = rows[k];",
        "const size_t chunk = chunks[r >> shift];",
        "const ptrdiff_t local = r - ((r >> shift) << shift);",
    ]


def sources(rule: Rule, dim: int, *, counts: bool, keeps: bool) -> RowSources:
    """Return the kernels of a rule for rows of ``dim`` elements.

    All have the inputs ``g`` (of `state`: the mean of a row's squares), `ROWS`, ``stride`` (the elements of a chunk's
    values), ``scales`` where the rule has a `clip_norm`, ``keep`` where it ``keeps``, ``numbers``, then the scalars of
    the gradient. The output of `squares` is ``out``, and then all have `CHUNKS`.

    Parameters
    ----------
    counts
        Whether ``numbers`` has the rule's scalars for each row; else each is a separate input.
    keeps
        Whether the values of each row are multiplied by a number first.

    Raises
    ------
    OptimizerError
        The equation uses something that cannot be written down.
    """
    num_scalars = len(rule.scalars(1))
    clips = rule.clip_norm is not None
    num_limits = len(rule.gradient_scalars()) - clips
    shared = [ROWS, "int64 stride"]
    shared += ["raw float32 scales"] * clips + ["raw float32 keep"] * keeps
    shared += ["raw float32 numbers"] if counts else [f"float32 q{i}" for i in range(num_scalars)]
    shared += [f"float32 p{i}" for i in range(num_limits)]
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in rule.name)

    def scalars(body: Body) -> list[Symbol]:
        if not counts:
            return [Symbol(body, f"q{i}") for i in range(num_scalars)]
        return [body.value(f"numbers[k * {num_scalars} + {i}]") for i in range(num_scalars)]

    def begun() -> tuple[Body, Symbol, Symbol]:
        """Return a body that has read an element and what its gradient is."""
        body = Body("float")
        w = body.value("load(chunk, at) * keep[k]" if keeps else "load(chunk, at)")
        limits = [body.value("scales[k]")] if clips else []
        limits += [Symbol(body, f"p{i}") for i in range(num_limits)]
        return body, w, rule.gradient(body)(w, Symbol(body, "g"), *limits)

    def kernel(role: str, first: str, where: Sequence[str], body: Body, ends: Sequence[str], *outputs: str) -> Source:
        lines = "\n".join([*where, *body.lines, *ends])
        return Source(f"zmqps_rows_{role}_{plain}", ", ".join([first, *shared]), ", ".join([*outputs, CHUNKS]), lines)

    body, w, d = begun()
    short = f"stride * {1 + len(rule.slots)} + local"
    slots = [body.value(f"load(chunk, at + stride * {number})") for number in range(1, 1 + len(rule.slots))]
    if rule.row_slots:
        slots.append(body.value(f"load(chunk, {short})"))
    results = rule.equation(body)(w, d, *slots, *scalars(body))
    if len(results) != 1 + len(rule.slots):
        raise OptimizerError(f"{rule.name!r} returns {len(results)} arrays for {len(rule.slots)} slots")
    stores = [f"store(chunk, at + stride * {n}, {body.text(result)});" for n, result in enumerate(results)]
    update = kernel("update", "float32 g", element(dim), body, stores)
    if not rule.row_slots:
        return RowSources(update, None, None)
    body, _, d = begun()
    squares = kernel("squares", "float32 g", element(dim), body, [f"out = {d.text} * {d.text};"], "float32 out")
    body = Body("float")
    old = body.value(f"load(chunk, {short})")
    new = rule.row_equation(body)(Symbol(body, "mean"), old, *scalars(body))
    ends = [f"store(chunk, {short}, {body.text(new)});"]
    state = kernel("state", "float32 mean", ["const ptrdiff_t k = i;", *_row()], body, ends)
    return RowSources(update, squares, state)


def can_write(rule: Rule) -> bool:
    """Whether there are `sources` for a rule."""
    try:
        sources(rule, 1, counts=False, keeps=False)
    except OptimizerError:
        return False
    return True


def compiled(elementwise: Any, source: Source) -> Any:
    """Return a kernel, by what compiles those of a device."""
    return elementwise(*source, PREAMBLE)
