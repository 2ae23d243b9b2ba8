"""Whatever is given in the place of an argument: one of our errors or a result, never a traceback of Python's."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.tables import for_each
from zmqps import codecs, optim, pipeline
from zmqps.errors import ClosedError, ConfigurationError, InternalError, PSError


class Unwritten:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


ODD: dict[str, Any] = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "400 digits": 10**400, "5000 digits": 10**5000,
    "minus 400 digits": -(10**400), "negative": -1, "text": "x", "no text": "", "surrogate": "\ud800", "nul": "a\0b",
    "bytes": b"x", "list": [1], "dict": {"a": 1}, "dict of numbers": {1: 2}, "set": {1}, "object": object(),
    "unwritten": Unwritten(), "complex": 1j, "fraction": 1.5, "numpy's nan": np.float32("nan"),
    "true": True, "a long text": "x" * 70_000, "an empty list": [], "an empty dict": {},
    "an array": np.arange(3.0), "a scalar array": np.array(2.0), "a type": int, "ragged": [[1], ["a"]],
}  # fmt: skip
SGD = optim.sgd(0.1)
W = {"w": np.ones(3, "f4")}
SECRET = "what both stages know"


def closed(open_: Callable[..., pipeline.Channel]) -> Callable[..., None]:
    """Return what opens a channel as something to call that leaves nothing open."""

    @wraps(open_)
    def call(**options: Any) -> None:
        open_(**options).close()

    return call


#: What is made without a cluster, and good arguments for what has no default.
ALONE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{name: (getattr(optim, name), {}) for name in optim.registry.BUILTIN},
    "group": (optim.group, {"pattern": "*"}),
    "scale_linearly": (optim.scale_linearly, {"spec_or_rate": SGD, "workers": 2}),
    "cosine_decay": (optim.cosine_decay, {"init_value": 0.1, "decay_steps": 10}),
    "linear_decay": (optim.linear_decay, {"init_value": 0.1, "decay_steps": 10}),
    "polynomial_decay": (optim.polynomial_decay, {"init_value": 0.1, "decay_steps": 10, "power": 2.0}),
    "one_cycle": (optim.one_cycle, {"peak_value": 0.1, "total_steps": 10}),
    "piecewise": (optim.piecewise, {"init_value": 0.1, "multipliers": {10: 0.5}}),
    "step_decay": (optim.step_decay, {"init_value": 0.1, "every": 10}),
    **{name: (getattr(codecs, name), {}) for name in ("int8", "topk", "onebit", "twobit")},
    "drop": (zmqps.stale.drop, {"bound": 3}),
    "compensate": (zmqps.stale.compensate, {}),
    "split": (zmqps.data.split, {"num_examples": 10, "rank": 0, "num_workers": 2}),
    "LocalCluster": (zmqps.LocalCluster, {}),
    "Servers": (zmqps.Servers, {}),
    "Saving": (zmqps.Saving, {}),
    "Limits": (zmqps.Limits, {}),
    "Watching": (zmqps.Watching, {}),
    "bind": (closed(pipeline.bind), {"endpoint": "tcp://127.0.0.1:0", "secret": SECRET}),
    "channel": (closed(pipeline.connect), {"endpoint": "tcp://127.0.0.1:1", "secret": SECRET}),
    "connect": (zmqps.connect, {"address": "tcp://127.0.0.1:1", "timeout": 0.001}),
}
#: A worker's methods, and good arguments for what has no default.
METHODS: dict[str, dict[str, Any]] = {
    "init": {"params": W, "optimizer": SGD, "mode": "async"}, "pull": {}, "push": {"grads": W},
    "push_pull": {"grads": W}, "advance": {}, "barrier": {"name": "b"}, "status": {},
    "gradient_buffers": {}, "close": {},
}  # fmt: skip
#: Those that yield.
LOOPS: dict[str, dict[str, Any]] = {"pull_each": {}, "ranges": {"num_examples": 10, "range_size": 5}}
CASES = [(name, argument) for name, (f, _) in ALONE.items() for argument in inspect.signature(f).parameters]
#: Waiting for so long is what was asked for.
LONG = ("inf", "fraction", "a scalar array")


def tried(call: Callable[..., Any], good: dict[str, Any], argument: str, odd: str) -> None:
    """Call something with an odd argument; what comes of it is a result, or an error of ours that can be shown."""
    refused = None
    try:
        call(**{**good, argument: ODD[odd]})
    except PSError as error:
        refused = error
    assert not isinstance(refused, InternalError | ClosedError), (argument, odd)
    text = str(refused or " ")
    assert text.isprintable(), (argument, odd)
    assert len(text) < 2000, (argument, odd)


def oddities(method: Callable[..., Any]) -> list[tuple[str, str]]:
    """Return the arguments of a method, each with what it is to be tried with."""
    arguments = [argument for argument in inspect.signature(method).parameters if argument != "self"]
    return [(a, odd) for a in arguments for odd in ODD if a != "timeout" or odd not in LONG]


@for_each("name, argument", CASES)
def test_without_a_cluster_it_is_taken_or_refused(name: str, argument: str) -> None:
    call, good = ALONE[name]
    for odd in ODD:
        if not (name == "connect" and argument == "timeout" and odd in LONG):
            tried(call, good, argument, odd)


def test_a_channel_takes_it_or_refuses_it_and_goes_on() -> None:
    with pipeline.bind("tcp://127.0.0.1:0", secret=SECRET, timeout=0.001) as channel:
        for method, good in ((channel.send, {"arrays": {"x": np.ones(3)}}), (channel.receive, {})):
            for argument, odd in oddities(method):
                tried(method, {"timeout": 0.001, **good}, argument, odd)
        for odd, value in ODD.items():
            tried(lambda v, **_: channel.send({"x": v}), {}, "v", odd)
            if value.__hash__ is not None:
                tried(lambda v, **_: channel.send({v: np.ones(3)}), {}, "v", odd)


@for_each("arrays", [None, [1], {1: np.ones(1)}, {"\ud800": np.ones(1)}, {"x": [[1], [1, 2]]}])
def test_what_a_channel_cannot_carry_is_a_configuration_error(arrays: Any) -> None:
    with pipeline.bind("tcp://127.0.0.1:0", secret=SECRET, timeout=0.001) as channel:
        with pytest.raises(ConfigurationError):
            channel.send(arrays)


@pytest.fixture(scope="module")
def worker() -> Iterator[zmqps.Worker]:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(W, optimizer=SGD, mode="async")
        yield worker


@for_each("name", METHODS)
def test_a_worker_takes_it_or_refuses_it_and_goes_on(worker: zmqps.Worker, name: str) -> None:
    method = getattr(worker, name)
    for argument, odd in oddities(method):
        tried(method, {"timeout": 0.2, **METHODS[name]} if name != "close" else {}, argument, odd)
    assert list(worker.pull()) == ["w"]


@for_each("name", LOOPS)
def test_a_loop_takes_it_or_refuses_it_and_the_worker_goes_on(worker: zmqps.Worker, name: str) -> None:
    method = getattr(worker, name)
    for argument, odd in oddities(method):
        data = {"name": f"{argument} {odd}"} if name == "ranges" else {}
        tried(
            lambda **options: next(iter(method(**options)), None),
            {"timeout": 0.2, **LOOPS[name], **data},
            argument,
            odd,
        )
    assert list(worker.pull()) == ["w"]


@for_each("name", ["pull", "pull_each", "push", "push_pull", "init"])
def test_what_is_in_a_list_or_mapping_is_taken_or_refused(worker: zmqps.Worker, name: str) -> None:
    method, good = getattr(worker, name), {"timeout": 0.2, **METHODS.get(name, {})}
    tensors = {"init": "params", "pull": "out", "pull_each": "out"}.get(name, "grads")
    for odd, value in ODD.items():
        tried(lambda v, **_: list(method(**{**good, tensors: {"w": v}}) or ()), {}, "v", odd)
        if value.__hash__ is not None:
            tried(lambda v, **_: list(method(**{**good, tensors: {v: W["w"]}}) or ()), {}, "v", odd)
        if tensors == "out":
            tried(lambda v, **_: list(method([v], timeout=0.2)), {}, "v", odd)
    assert list(worker.pull()) == ["w"]


@for_each(
    "make, good",
    [(zmqps.local.LocalSteps, {"every": 2}), (zmqps.local.ElasticAveraging, {"every": 2, "alpha": 0.5})],
)
def test_local_steps_take_it_or_refuse_it(worker: zmqps.Worker, make: type, good: dict[str, Any]) -> None:
    for argument, odd in oddities(make):
        if argument != "worker":
            tried(make, {"worker": worker, "timeout": 0.2, **good}, argument, odd)


@for_each("name", ["connect", *METHODS, *LOOPS])
def test_the_same_to_be_awaited_takes_it_or_refuses_it(worker: zmqps.Worker, name: str) -> None:
    good = {**METHODS, **LOOPS, "connect": {"address": "tcp://127.0.0.1:1"}}[name]

    async def first(loop: Any) -> None:
        async for _ in loop:
            return

    def awaited(something: Any) -> Awaitable[Any]:
        return first(something) if name in LOOPS else something

    async def call(method: Callable[..., Any], options: dict[str, Any]) -> PSError | None:
        try:
            await awaited(method(**options))
        except PSError as error:
            return error
        return None

    async def all_of_them() -> None:
        async with zmqps.aio.connect(worker.address) as asynchronous:
            await asynchronous.pull()
            method = zmqps.aio.connect if name == "connect" else getattr(asynchronous, name)
            for argument, odd in oddities(method):
                options = {"timeout": 0.001 if name == "connect" else 0.2, **good, argument: ODD[odd]}
                if name == "ranges" and argument != "name":
                    options["name"] = f"asynchronous {argument} {odd}"
                refused = await asyncio.wait_for(call(method, options), 20)
                assert not isinstance(refused, InternalError | ClosedError) or name == "close", (argument, odd)
            if name != "close":
                assert list(await asynchronous.pull()) == ["w"]

    asyncio.run(all_of_them())


@for_each("name, argument", [("push", "atomic"), ("pull", "copy"), ("push_pull", "copy")])
@for_each("value", [np.arange(3.0), None, 1, "yes"])
def test_a_flag_is_true_or_false(worker: zmqps.Worker, name: str, argument: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{argument} must be True or False"):
        getattr(worker, name)(**METHODS[name], **{argument: value})


@for_each("argument", ["staleness", "aggregate", "workers", "retain"])
def test_a_number_that_no_message_can_carry_is_refused_by_its_name(worker: zmqps.Worker, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=argument.rpartition("_")[2]):
        worker.init(W, optimizer=SGD, mode="bounded" if argument == "staleness" else "async", **{argument: 10**400})
