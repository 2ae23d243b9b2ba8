"""Initial values of rows of a sparse table, for ``zmqps.table(..., initial=…)``.

A row's first values depend on nothing but the seed, the name of the table and the id, so every server computes the same
ones, whenever it needs them, and a row that was never trained takes no memory.

================== ==========================================
`zeros`            zeros
`constant`         one number
`uniform`          numbers between two bounds
`normal`           normally distributed numbers
`truncated_normal` the same within two standard deviations
================== ==========================================
"""

from __future__ import annotations

from zmqps.rows.initial import Initial

__all__ = ["Initial", "constant", "normal", "truncated_normal", "uniform", "zeros"]


def zeros() -> Initial:
    """Return the rule that rows begin with zeros."""
    return Initial("zeros")


def constant(value: float) -> Initial:
    """Return the rule that rows begin with one number everywhere.

    Parameters
    ----------
    value : float
    """
    return Initial("constant", value)


def uniform(low: float, high: float, *, seed: int = 0) -> Initial:
    """Return the rule that rows begin with numbers drawn evenly from ``[low, high)``.

    Parameters
    ----------
    low, high : float
    seed : int
        Another one, other numbers.
    """
    return Initial("uniform", low, high, seed)


def normal(stddev: float, *, mean: float = 0.0, seed: int = 0) -> Initial:
    """Return the rule that rows begin with normally distributed numbers.

    Parameters
    ----------
    stddev : float
        Standard deviation.
    mean : float
    seed : int
        Another one, other numbers.
    """
    return Initial("normal", mean, stddev, seed)


def truncated_normal(stddev: float, *, mean: float = 0.0, seed: int = 0) -> Initial:
    """Return the rule that rows begin with normally distributed numbers, none beyond two standard deviations.

    Parameters
    ----------
    stddev, mean, seed
        As for `normal`; the standard deviation is that before the tails are cut off.
    """
    return Initial("truncated_normal", mean, stddev, seed)
