"""Numbers and sentences for a narrow terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from zmqps.errors import counted, listed, seconds

#: From the least to the most.
BLOCKS = "▁▂▃▄▅▆▇█"
#: A sentence names this many nodes.
MOST_NAMED = 6
#: What a column has room for; of a longer one the exponent would be cut.
MAX_NUMBER_CHARS = 8


def number(value: float | None) -> str:
    """Return a number in few characters; nothing where it is not known."""
    if value is None:
        return ""
    text = f"{value:.4g}"
    return text if len(text) <= MAX_NUMBER_CHARS else f"{value:.2g}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last values as one character each, or the means of stretches where there are more than fit."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known or width < 1:
        return ""
    if len(known) > width:
        cuts = [len(known) * i // width for i in range(width + 1)]
        known = [sum(known[a:b]) / (b - a) for a, b in pairwise(cuts)]
    least, most = min(known), max(known)
    span = most - least
    if span <= 0:
        return BLOCKS[0] * len(known)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - least) / span * len(BLOCKS)))] for value in known)


def health_sentence(found: Mapping[str, Any]) -> str:
    """Return in a sentence how the nodes are that were examined."""
    nodes = found["nodes"]
    silent = [f"{node['role']} {node['rank']} on {node['host']}" for node in nodes if node["state"] == "silent"]
    answered = [node for node in nodes if node["state"] == "answered"]
    if not nodes:
        return "only the coordinator is there"
    left_out = found.get("left_out", 0)
    all_ = f"all {counted(len(answered) + left_out, 'node')} answer" if len(answered) != 1 else "the one node answers"
    if silent:
        others = "; the others do" if answered else ""
        return f"{listed(silent, MOST_NAMED)} {'does' if len(silent) == 1 else 'do'} not answer{others}"
    slowest = max(answered, key=lambda node: node["latency_s"], default=None)
    if slowest is None:
        return "no node is left"
    return f"{all_}, the slowest in {seconds(slowest['latency_s'])} ({slowest['role']} {slowest['rank']})"
