"""Local steps: a worker trains alone for a while, then sends the others its changes.

Bytes move once in k steps instead of in each. The inner optimizer is the caller's own code, which
changes ``params`` in place; what is pushed after k steps is an ordinary gradient to the servers, and
the job's optimizer is the outer one.

Buffers of the job (``init(buffers=…)``) are not part of it: they have no gradients, so ``params`` is without them, and
no exchange reads or writes them. Each worker keeps its own, as statistics of BatchNorm are kept while it trains
alone; ``worker.set`` or ``worker.average`` gives a value to the others, and to checkpoints, in the step that the
next exchange ends.

Examples
--------
>>> worker.init(params, optimizer=zmqps.optim.sgd(0.7, momentum=0.9, nesterov=True))
>>> local = zmqps.local.LocalSteps(worker, every=8)
>>> for batch in batches:
...     for name, g in gradients(local.params, batch).items():
...         local.params[name] -= 0.1 * g
...     local.step()
>>> local.finish()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError
from zmqps.worker import Worker


class _Local(ABC):
    """The worker's own copy of the parameters, and the count of steps since it was last exchanged."""

    def __init__(self, worker: Worker, every: int, timeout: float | None) -> None:
        self.worker = worker
        self.every = checks.whole("every", every, 1)
        trained = [parameter.name for parameter in worker._member.job(timeout).job.parameters if not parameter.buffer]
        values = worker.pull(trained, timeout=timeout)
        self.params: dict[str, Array] = {name: np.array(value) for name, value in values.items()}
        self.steps = 0
        self._since = 0
        self._timeout = timeout
        # what travels: allocated once, for a fresh buffer of a large model costs more than the arithmetic
        self._sent = {name: np.empty_like(value) for name, value in self.params.items()}

    def step(self) -> bool:
        """Count an inner step; exchange with the servers if it was the k-th since the last time.

        Returns
        -------
        bool
            Whether it exchanged: ``params`` then holds new values, in the same arrays.

        Raises
        ------
        PSError
            As `Worker.push_pull`; ``params`` still holds the worker's own values. After a
            `DeadlineError` the push may have been applied, so do not exchange once more: `reset`.
        """
        self.steps += 1
        self._since += 1
        if self._since < self.every:
            return False
        self._exchange()
        self._since = 0
        return True

    def finish(self) -> dict[str, Array]:
        """Exchange what was trained since the last time, if anything; return ``params``.

        The worker stays in the cluster, call its ``finish`` to leave.
        """
        if self._since:
            self._exchange()
            self._since = 0
        return self.params

    @abstractmethod
    def reset(self) -> None:
        """Give up what was trained since the last exchange and begin from the servers' values."""

    @abstractmethod
    def _exchange(self) -> None: ...


class LocalSteps(_Local):
    """Push the change of the parameters to the servers every k steps, as a gradient (DiLoCo).

    The pseudo-gradient is ``Δ = w_global − w_local``: the values that were pulled last minus those after k local steps.
    The servers apply it with the job's optimizer, and the worker continues from the result. In the synchronous mode the
    servers average the Δ of all workers: with ``optim.sgd(0.7, momentum=0.9, nesterov=True)`` this is DiLoCo, with
    ``optim.sgd(1.0)`` local SGD, or federated averaging. In the asynchronous mode each Δ is applied on arrival, so
    divide the outer learning rate by the number of workers; momentum over stale Δ overshoots.

    Parameters
    ----------
    worker : Worker
        Its job has been started (`Worker.init`).
    every : int
        Local steps between two exchanges, k.
    timeout : float, optional
        Seconds for each exchange; by default the worker's.

    Attributes
    ----------
    params : dict of str to ndarray
        The worker's own values of the trained parameters, in the servers' dtype. Change them in place.
    steps : int
        Inner steps so far.

    References
    ----------
    Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen: DiLoCo: Distributed
    Low-Communication Training of Language Models, 2023, algorithm 1.
    """

    def __init__(self, worker: Worker, every: int, *, timeout: float | None = None) -> None:
        super().__init__(worker, every, timeout)
        self._start = {name: value.copy() for name, value in self.params.items()}

    def _exchange(self) -> None:
        for name, value in self.params.items():
            np.subtract(self._start[name], value, out=self._sent[name])
        self.worker.push_pull(self._sent, out=self._start, timeout=self._timeout)
        self._adopt()

    def reset(self) -> None:
        """Discard the local steps since the last exchange, and continue from the servers' values."""
        self.worker.pull(out=self._start, timeout=self._timeout)
        self._since = 0
        self._adopt()

    def _adopt(self) -> None:
        for name, value in self._start.items():
            self.params[name][...] = value


class ElasticAveraging(_Local):
    """Pull the worker's values and the centre, which the servers hold, towards each other every k steps (EASGD).

    With ``d = α (w_local − w_centre)`` the worker subtracts ``d`` from its own values and the servers add it to the
    centre. The worker keeps its own values and explores around the centre, which is evaluated in the end. The job's
    optimizer must be ``optim.sgd(1.0)``, which adds what is pushed; in the synchronous mode servers average over
    workers, so there ``optim.sgd(num_workers)`` gives the paper's equation.

    Parameters
    ----------
    worker : Worker
        Its job has been started (`Worker.init`).
    alpha : float
        Elasticity, above 0 and below 1; the paper uses 0.9 divided by the number of workers.
    every : int
        Local steps between two exchanges, the paper's communication period τ.
    timeout : float, optional
        Seconds for each pull and push; by default the worker's.

    Attributes
    ----------
    params : dict of str to ndarray
        The worker's own values of the trained parameters, in the servers' dtype. Change them in place.
    steps : int
        Inner steps so far.

    Raises
    ------
    ConfigurationError
        The options are out of range, or the job's optimizer is not SGD.

    References
    ----------
    Zhang, Choromanska, LeCun: Deep Learning with Elastic Averaging SGD, NIPS 2015, algorithm 1.
    """

    def __init__(self, worker: Worker, alpha: float, every: int, *, timeout: float | None = None) -> None:
        self.alpha = checks.number("alpha", alpha, above=0, below=1)
        optimizer = worker._member.job(timeout).job.optimizer
        hyper = optimizer["hyper"], *(group.get("hyper", {}) for group in optimizer.get("groups", ()))
        if optimizer["name"] != "sgd" or any(numbers.get("momentum") for numbers in hyper):
            with_momentum = " with momentum" if optimizer["name"] == "sgd" else ""
            raise ConfigurationError(
                f"elastic averaging needs optimizer=optim.sgd(1.0), this job has {optimizer['name']}{with_momentum}"
            )
        super().__init__(worker, every, timeout)
        self._centre: dict[str, Any] = {name: np.empty_like(value) for name, value in self.params.items()}

    def _exchange(self) -> None:
        self.worker.pull(out=self._centre, timeout=self._timeout)
        for name, value in self.params.items():
            difference = np.subtract(self._centre[name], value, out=self._sent[name])
            difference *= difference.dtype.type(self.alpha)
        self.worker.push(self._sent, timeout=self._timeout)
        for name, value in self.params.items():
            value += self._sent[name]

    def reset(self) -> None:
        """Discard the worker's own values, and continue from the centre's."""
        self.worker.pull(out=self.params, timeout=self._timeout)
        self._since = 0
