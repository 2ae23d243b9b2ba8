"""Whatever is given in the place of an argument: one of our errors or a result, never a traceback of Python's."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from zmqps import codecs, optim
from zmqps.errors import ClosedError, ConfigurationError, InternalError, PSError


class Unwritten:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


ODD: dict[str, Any] = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "400 digits": 10**400, "5000 digits": 10**5000,
    "minus 400 digits": -(10**400), "negative": -1, "text": "x", "no text": "", "surrogate": "\ud800", "nul": "a\0b",
    "bytes": b"x", "list": [1], "dict": {"a": 1}, "dict of numbers": {1: 2}, "set": {1}, "object": object(),
    "unwritten": Unwritten(), "complex": 1j, "fraction": 1.5, "numpy's nan": np.float32("nan"),
    "an array": np.arange(3.0), "a scalar array": np.array(2.0), "a type": int, "ragged": [[1], ["a"]],
}  # fmt: skip
SGD = optim.sgd(0.1)
W = {"w": np.ones(3, "f4")}
#: What is made without a cluster, and good arguments for what has no default.
ALONE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{name: (getattr(optim, name), {}) for name in ("adam", "adadelta", "ftrl", "lion", "rmsprop", "sgd")},
    "nesterov": (optim.nesterov, {"learning_rate": 0.1}),
    "group": (optim.group, {"pattern": "*"}),
    "scale_linearly": (optim.scale_linearly, {"spec_or_rate": SGD, "workers": 2}),
    "cosine_decay": (optim.cosine_decay, {"init_value": 0.1, "decay_steps": 10}),
    "step_decay": (optim.step_decay, {"init_value": 0.1, "every": 10}),
    **{name: (getattr(codecs, name), {}) for name in ("int8", "topk", "onebit", "twobit")},
    "drop": (zmqps.stale.drop, {"bound": 3}),
    "compensate": (zmqps.stale.compensate, {}),
    "split": (zmqps.data.split, {"num_examples": 10, "rank": 0, "num_workers": 2}),
    "LocalCluster": (zmqps.LocalCluster, {}),
    "connect": (zmqps.connect, {"address": "tcp://127.0.0.1:1", "timeout": 0.001}),
}
#: A worker's methods, good arguments, and those that may be anything or take their time.
METHODS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "init": ({"params": W, "optimizer": SGD}, set()),
    "pull": ({}, {"copy"}),
    "push": ({"grads": W}, {"atomic"}),
    "push_pull": ({"grads": W}, {"copy"}),
    "advance": ({}, set()),
    "barrier": ({"name": "b"}, set()),
    "status": ({}, set()),
    "close": ({}, set()),
}
CASES = [(name, argument) for name, (f, _) in ALONE.items() for argument in inspect.signature(f).parameters]
#: Waiting for so long is what was asked for.
LONG = ("inf", "fraction")


def tried(call: Callable[..., Any], good: dict[str, Any], argument: str, odd: str) -> None:
    """Call something with an odd argument; what comes of it is a result, or an error of ours that can be shown."""
    refused = None
    try:
        call(**{**good, argument: ODD[odd]})
    except PSError as error:
        refused = error
    assert not isinstance(refused, InternalError | ClosedError), (argument, odd)
    assert str(refused or " ").isprintable(), (argument, odd)


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_without_a_cluster_it_is_taken_or_refused(name: str, argument: str) -> None:
    call, good = ALONE[name]
    for odd in ODD:
        if not (name == "connect" and argument == "timeout" and odd in LONG):
            tried(call, good, argument, odd)


@pytest.fixture(scope="module")
def worker() -> Iterator[zmqps.Worker]:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(W, optimizer=SGD)
        yield worker


@pytest.mark.parametrize("name", METHODS)
def test_a_worker_takes_it_or_refuses_it_and_goes_on(worker: zmqps.Worker, name: str) -> None:
    good, anything = METHODS[name]
    method = getattr(worker, name)
    for argument in inspect.signature(method).parameters:
        for odd in ODD:
            if argument in anything or (argument == "timeout" and (odd in LONG or odd == "a scalar array")):
                continue
            tried(method, {"timeout": 0.2, **good} if name != "close" else {}, argument, odd)
    assert list(worker.pull()) == ["w"]


@pytest.mark.parametrize("argument", ["staleness", "replicas_to_aggregate", "workers", "retain"])
def test_a_number_that_no_message_can_carry_is_refused_by_its_name(worker: zmqps.Worker, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=argument.rpartition("_")[2]):
        worker.init(W, optimizer=SGD, **{argument: 10**400})
