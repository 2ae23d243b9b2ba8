"""Initial values of rows of a sparse table, for ``zmqps.table(..., initial=…)``.

A row's initial values depend only on the seed, the name of the table and the id. So every server computes the same ones
at any time, and a row that was never trained takes no memory.

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
    """Return the rule that initializes rows with zeros."""
    return Initial("zeros")


def constant(value: float) -> Initial:
    """Return the rule that initializes rows with one number.

    Parameters
    ----------
    value : float
    """
    return Initial("constant", value)


def uniform(low: float, high: float, *, seed: int = 0) -> Initial:
    """Return the rule that initializes rows with numbers drawn evenly from ``[low, high)``.

    Parameters
    ----------
    low, high : float
    seed : int
        Another seed gives other numbers.
    """
    return Initial("uniform", low, high, seed)


def normal(stddev: float, *, mean: float = 0.0, seed: int = 0) -> Initial:
    """Return the rule that initializes rows with normally distributed numbers.

    Parameters
    ----------
    stddev : float
        Standard deviation.
    mean : float
    seed : int
        Another seed gives other numbers.
    """
    return Initial("normal", mean, stddev, seed)


def truncated_normal(stddev: float, *, mean: float = 0.0, seed: int = 0) -> Initial:
    """Return the rule that initializes rows with normally distributed numbers within two standard deviations.

    Parameters
    ----------
    stddev, mean, seed
        As for `normal`; the standard deviation before the tails are cut off.
    """
    return Initial("truncated_normal", mean, stddev, seed)
