"""Bad input through the public API: a typed error that says what to do, and the worker goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.net.cluster import Cluster
from tests.tables import for_each

SGD = zmqps.optim.sgd(learning_rate=0.1)


class Copied:
    """Converts to an array, but not to one that shares its memory."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(4, np.float32)


@pytest.fixture(scope="module")
def worker() -> Iterator[zmqps.Worker]:
    with Cluster(1, 4096) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"a": np.zeros(4, "f4"), "b": np.zeros(5, "f4"), "s": np.float32(3)}, optimizer=SGD, mode="async")
        yield worker


BAD: dict[str, tuple[type[Exception], Callable[[zmqps.Worker], object]]] = {
    "a name that is not there": (zmqps.UnknownParameterError, lambda w: w.pull("c")),
    "a shape that is not the parameter's": (zmqps.ShapeError, lambda w: w.push({"a": np.zeros(5)})),
    "integers": (zmqps.DtypeError, lambda w: w.push({"a": np.zeros(4, int)})),
    "no gradient of a name that is not there": (zmqps.UnknownParameterError, lambda w: w.push({"c": None})),
    "lists of different lengths": (zmqps.DtypeError, lambda w: w.push({"a": [[1.0], [2.0, 3.0]]})),
    "NaN": (zmqps.NonFiniteGradientError, lambda w: w.push({"a": np.full(4, np.nan)})),
    "a number that float32 cannot hold": (zmqps.NonFiniteGradientError, lambda w: w.push({"a": np.full(4, 1e39)})),
    "NaN in a later init": (
        zmqps.ConfigurationError,
        lambda w: w.init({"a": np.full(4, np.nan)}, optimizer=SGD, mode="async"),
    ),
    "another model": (zmqps.JobMismatchError, lambda w: w.init({"a": np.zeros(3, "f4")}, optimizer=SGD, mode="async")),
    "a name without an array in out": (zmqps.ConfigurationError, lambda w: w.pull("a", out={"b": np.zeros(5)})),
    "out that is no mapping": (zmqps.ConfigurationError, lambda w: w.pull(out=[np.zeros(4)])),
    "out that is a scalar, not an array": (zmqps.DtypeError, lambda w: w.pull(out={"s": np.float32(9)})),
    "out that is copied": (zmqps.DtypeError, lambda w: w.pull(out={"a": Copied()})),
    "names that are a number": (zmqps.ConfigurationError, lambda w: w.pull(5)),  # type: ignore[arg-type]
    "names that are bytes": (zmqps.ConfigurationError, lambda w: w.pull(b"a")),  # type: ignore[arg-type]
    "a list for a name": (zmqps.UnknownParameterError, lambda w: w.pull([["a"]])),  # type: ignore[list-item]
    "a number for a name": (zmqps.UnknownParameterError, lambda w: w.push({1: np.zeros(4)})),  # type: ignore[dict-item]
    "a codec that is a number": (zmqps.ConfigurationError, lambda w: w.push({"a": np.zeros(4)}, codec=3)),  # type: ignore[arg-type]
    "a pull's codec that is a number": (zmqps.ConfigurationError, lambda w: w.pull(codec=3)),  # type: ignore[arg-type]
    "complex numbers": (zmqps.DtypeError, lambda w: w.push({"a": np.zeros(4, "c8")})),
    "integers in out": (zmqps.DtypeError, lambda w: w.pull(out={"a": np.zeros(4, "i4")})),
    "out that is read-only": (zmqps.DtypeError, lambda w: w.pull(out={"a": np.broadcast_to(np.zeros(1), (4,))})),
    "a timeout that is text": (zmqps.ConfigurationError, lambda w: w.pull(timeout="3")),  # type: ignore[arg-type]
    "no time at all": (zmqps.ConfigurationError, lambda w: w.pull(timeout=0)),
    "a barrier without a name": (zmqps.ConfigurationError, lambda w: w.barrier("", timeout=1)),
    "a barrier whose name is a number": (zmqps.ConfigurationError, lambda w: w.barrier(3, timeout=1)),  # type: ignore[arg-type]
    "a barrier whose name is a novel": (zmqps.ConfigurationError, lambda w: w.barrier("x" * 5000, timeout=1)),
    "a barrier whose name cannot be encoded": (zmqps.ConfigurationError, lambda w: w.barrier("\ud800", timeout=1)),
}


NESTED = {"enc": {"layer": {"w": np.zeros(4, "f4")}}}


@for_each(
    "what, call",
    [
        ("params", lambda w: w.init(NESTED, optimizer=SGD, mode="async")),
        ("gradients", lambda w: w.push(NESTED)),
        ("gradients", lambda w: w.push({"a": {"w": np.zeros(4)}})),
        ("gradients", lambda w: w.push_pull(NESTED)),
        ("params", lambda w: w.init({"enc": {}}, optimizer=SGD, mode="async")),
    ],
)
def test_a_nested_mapping_is_refused_and_how_to_make_it_flat_is_said(
    worker: zmqps.Worker, what: str, call: Callable[[zmqps.Worker], object]
) -> None:
    with pytest.raises(zmqps.ConfigurationError) as refused:
        call(worker)
    assert str(refused.value).startswith(f"{what}: '")
    assert "pass a flat mapping with names joined by '.', say {" in str(refused.value)
    assert ".w': …}" in str(refused.value)


@for_each("case", BAD)
def test_it_is_refused_and_nothing_is_changed(worker: zmqps.Worker, case: str) -> None:
    expected, call = BAD[case]
    with pytest.raises(expected):
        call(worker)
    assert {name: value.tolist() for name, value in worker.pull().items()} == {"a": [0] * 4, "b": [0] * 5, "s": 3}


def test_names_may_come_from_a_generator(worker: zmqps.Worker) -> None:
    out = np.ones(4, np.float32)
    assert list(worker.pull((name for name in ["a"]), out={"a": out})) == ["a"]
    assert out.tolist() == [0] * 4


def test_waiting_in_a_callback_is_an_error_and_no_hang(worker: zmqps.Worker) -> None:
    answers: list[BaseException | None] = []
    called = threading.Event()

    def callback(_: object) -> None:
        try:
            worker.pull("b")
        except zmqps.ConfigurationError as error:
            answers.append(error)
        called.set()

    worker.pull_async("a").add_done_callback(callback)
    assert called.wait(20)
    worker.pull("a")
    # a pull that was done when the callback was added runs it here, where waiting is fine
    assert all("callback" in str(error) for error in answers)


@for_each("address", [None, 5, "localhost", "tcp://*:5570", "tcp://127.0.0.1:0", "tcp://127.0.0.1:x"])
def test_an_address_that_is_none_fails_at_once(address: Any) -> None:
    with pytest.raises(zmqps.ConfigurationError):
        zmqps.connect(address)


@pytest.mark.parametrize(
    "options", [{"servers": 0}, {"servers": zmqps.Servers(0)}, {"workers": 0}, {"replicas": 1}, {"log_level": "loud"}]
)
def test_a_cluster_that_cannot_be_starts_no_process(options: dict[str, Any]) -> None:
    with pytest.raises(zmqps.ConfigurationError):
        zmqps.LocalCluster(**options)


@for_each(
    "group, options",
    [
        (zmqps.Servers, {"kernels": "gold"}),
        (zmqps.Servers, {"apply_threads": 0}),
        (zmqps.Limits, {"slice_size": 1}),
        (zmqps.Watching, {"values": "jsonl:a"}),
    ],
)
def test_a_group_of_options_that_cannot_be_is_refused_when_it_is_made(group: Any, options: dict[str, Any]) -> None:
    with pytest.raises(zmqps.ConfigurationError, match=next(iter(options))):
        group(**options)


ODD = {"w": np.zeros(3, ">f4"), "s": np.float64(2), "e": np.zeros((0, 4), "f2"), "f": np.zeros((2, 3), "f4", order="F")}


@for_each("dtype", [">f4", "<f4", ">f8", "<f8", "f2"])
def test_arrays_of_any_float_order_of_bytes_and_layout_are_taken_and_filled(dtype: str) -> None:
    """What is odd about them is put right on the way, and zeros and ones are so in every dtype."""
    with Cluster(2, 4096) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(ODD, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="async")
        numbers = np.arange(6, dtype=dtype)
        worker.push(
            {"w": numbers[::2], "s": np.ones((), dtype), "e": np.zeros((0, 4), dtype), "f": numbers.reshape(3, 2).T}
        )
        out = {
            "w": np.ones(6, dtype)[::-2],
            "s": np.ones((), dtype),
            "e": np.ones((0, 4), dtype),
            "f": np.ones((2, 3), dtype, order="F"),
        }
        worker.pull(out=out)
        assert {name: array.tolist() for name, array in out.items()} == {
            "w": [0, -2, -4], "s": 1, "e": [], "f": [[0, -2, -4], [-1, -3, -5]],
        }  # fmt: skip
        assert {array.dtype for array in out.values()} == {np.dtype(dtype)}
