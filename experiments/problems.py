"""What is trained: handwritten digits, and a parabola."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np

Params = dict[str, Any]  # name -> array


class Problem(Protocol):
    """A loss, its stochastic gradients, and where to begin."""

    def start(self) -> Params:
        """Return the initial values."""

    def loss(self, params: Params) -> float:
        """Return the loss over all examples."""

    def gradients(self, params: Params, rng: np.random.Generator) -> Params:
        """Return the gradients on a mini-batch."""


class Parabola:
    """``w²/2``: the gradient is ``w``."""

    def __init__(self, start: float = 2.0) -> None:
        self._start = start

    def start(self) -> Params:
        """One number."""
        return {"w": np.array([self._start])}

    def loss(self, params: Params) -> float:
        """w²/2."""
        return float(params["w"][0] ** 2 / 2)

    def gradients(self, params: Params, rng: np.random.Generator) -> Params:
        """w."""
        return {"w": params["w"].copy()}


@cache
def digits() -> tuple[Any, Any]:
    """Return 1797 images as rows of 64 floats from 0 to 1, and their digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.float32(images / 16), labels


class Digits:
    """A network of 64, 32 and 10 units on scikit-learn's handwritten digits, cross-entropy.

    Parameters
    ----------
    batch
        Examples of a mini-batch.
    hidden
        Units of the hidden layer.
    """

    def __init__(self, batch: int = 16, hidden: int = 32) -> None:
        self.batch = batch
        self._hidden = hidden

    def start(self) -> Params:
        """Small random weights, always the same."""
        rng, n = np.random.default_rng(0), self._hidden
        return {
            "w1": rng.normal(0, 1 / 8, (64, n)).astype("f4"),
            "b1": np.zeros(n, "f4"),
            "w2": rng.normal(0, n**-0.5, (n, 10)).astype("f4"),
            "b2": np.zeros(10, "f4"),
        }

    def loss(self, params: Params) -> float:
        """Mean cross-entropy of all images; infinite where the network has diverged."""
        x, y = digits()
        with np.errstate(all="ignore"):
            _, p = _forward(params, x)
            loss = -np.log(p[np.arange(len(y)), y] + 1e-12).mean()
        return float(loss) if np.isfinite(loss) else float("inf")

    def gradients(self, params: Params, rng: np.random.Generator) -> Params:
        """Backpropagation by hand."""
        x, y = digits()
        chosen = rng.integers(0, len(y), self.batch)
        x, y = x[chosen], y[chosen]
        with np.errstate(all="ignore"):
            hidden, p = _forward(params, x)
            d_scores = (p - np.eye(10, dtype="f4")[y]) / np.float32(len(y))
            d_hidden = (d_scores @ params["w2"].T) * (hidden > 0)
            return {"w1": x.T @ d_hidden, "b1": d_hidden.sum(0), "w2": hidden.T @ d_scores, "b2": d_scores.sum(0)}


def _forward(params: Params, x: Any) -> tuple[Any, Any]:
    hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
    scores = hidden @ params["w2"] + params["b2"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)
