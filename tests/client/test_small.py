"""Many small tensors, which travel as whole tables: they mean what tensors one by one mean."""

from __future__ import annotations

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.tables import for_each
from tests.team import PATIENCE
from zmqps.client.small import MANY, SMALL_NBYTES, SmallTensors, are_writeable
from zmqps.core.job.keyspace import KeySpace
from zmqps.core.job.spec import Parameter
from zmqps.errors import NonFiniteGradientError, ShapeError
from zmqps.optim import sgd

#: Of two dtypes, in turns, so that each table's parameters are not neighbours in the dict.
SHAPES = {f"w{i}": ((3, i % 5), "float32") if i % 2 else ((i % 7,), "float64") for i in range(MANY + 6)}
PARAMETERS = tuple(Parameter(name, shape, dtype) for name, (shape, dtype) in SHAPES.items())


def small(parameters: tuple[Parameter, ...] = PARAMETERS) -> SmallTensors:
    found = SmallTensors.of(parameters, KeySpace(parameters).dense)
    assert found is not None
    return found


def arrays(seed: int) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(seed)
    return {name: noise.standard_normal(shape).astype(dtype) for name, (shape, dtype) in SHAPES.items()}


def test_a_job_of_few_or_large_tensors_or_with_buffers_is_none() -> None:
    few = PARAMETERS[: MANY - 1]
    large = (*PARAMETERS, Parameter("large", (SMALL_NBYTES * (len(PARAMETERS) + 1) // 4,), "float32"))
    buffered = (*PARAMETERS, Parameter("mean", (3,), "float32", True))
    for parameters in (few, large, buffered):
        assert SmallTensors.of(parameters, KeySpace(parameters).dense) is None


def test_tables_have_each_tensor_where_it_lies() -> None:
    values = arrays(1)
    keyspace = KeySpace(PARAMETERS)
    plain = small().plain(values)
    assert plain is not None
    for joined, table in zip(small().join(plain), keyspace.dense, strict=True):
        expected = np.concatenate([list(values.values())[n].reshape(-1) for n in table.parameters])
        assert joined.dtype == table.dtype
        np.testing.assert_array_equal(joined, expected)


def test_what_is_strided_or_of_another_dtype_is_joined_too() -> None:
    values = arrays(2)
    expected = small().join(list(values.values()))
    values["w1"] = np.asfortranarray(values["w1"])
    values["w9"] = np.repeat(values["w9"], 2, axis=1)[:, ::2]
    values["w2"] = values["w2"][::-1].copy()[::-1]
    odd = dict(values, w3=values["w3"].astype(np.float64))
    for given in (values, odd):
        for joined, wanted in zip(small().join(list(given.values())), expected, strict=True):
            np.testing.assert_array_equal(joined, wanted)


@for_each("what", ["missing", "order", "shape", "type", "dtype", "no dict"])
def test_anything_unusual_is_left_to_the_look_at_each(what: str) -> None:
    values: dict[str, object] = dict(arrays(3))
    if what == "missing":
        del values["w5"]
    elif what == "order":
        values["w5"] = values.pop("w5")
    elif what == "shape":
        values["w5"] = np.zeros((1,), np.float32)
    elif what == "type":
        values["w5"] = [1.0, 2.0]
    elif what == "dtype":
        values["w5"] = np.zeros(SHAPES["w5"][0], np.int64)
    assert small().plain([*values.items()] if what == "no dict" else values) is None  # type: ignore[arg-type]


def test_two_landings_under_way_are_two_and_one_that_is_delivered_is_used_again() -> None:
    one = small()
    first, second = one.landing(), one.landing()
    assert not any(np.shares_memory(a, b) for a, b in zip(first.tables, second.tables, strict=True))
    for table in first.tables:
        table[:] = np.arange(table.size)
    out = {name: np.zeros(shape, np.float32) for name, (shape, _) in SHAPES.items()}
    one.deliver(first, list(out.values()))
    for table in KeySpace(PARAMETERS).dense:
        came = np.concatenate([list(out.values())[n].reshape(-1) for n in table.parameters])
        np.testing.assert_array_equal(came, np.arange(table.size))
    assert one.landing() is first
    out["w9"].flags.writeable = False
    assert not are_writeable(list(out.values()))


def test_a_step_of_small_tensors_is_that_of_each() -> None:
    with InProcessCluster(servers=2, slice_size=1024) as cluster, zmqps.connect(cluster.address) as worker:
        start, gradients = arrays(4), arrays(5)
        worker.init(start, optimizer=sgd(0.5), mode="async", timeout=PATIENCE)
        out = {name: np.full_like(value, np.nan) for name, value in start.items()}
        got = worker.push_pull(gradients, out=out, timeout=PATIENCE)
        for name, value in start.items():
            expected = value - value.dtype.type(0.5) * gradients[name]
            np.testing.assert_array_equal(out[name], expected)
            assert got[name] is out[name]
        buffers = worker.gradient_buffers()  # from now on gradients may lie where they are read, and are not joined
        for name, gradient in gradients.items():
            buffers[name][...] = gradient
        for given in (buffers, {name: buffer[...] for name, buffer in buffers.items()}, gradients):
            before = {name: value.copy() for name, value in out.items()}
            worker.push_pull(given, out=out, timeout=PATIENCE)
            for name, value in before.items():
                np.testing.assert_array_equal(out[name], value - value.dtype.type(0.5) * gradients[name])
        each = dict(worker.pull_each(out={name: np.zeros_like(value) for name, value in start.items()}))
        for name, value in out.items():
            np.testing.assert_array_equal(each[name], value)


def test_a_refused_step_of_small_tensors_names_them_and_changes_nothing() -> None:
    with InProcessCluster(servers=2, slice_size=1024) as cluster, zmqps.connect(cluster.address) as worker:
        start, bad = arrays(6), arrays(7)
        worker.init(start, optimizer=sgd(0.5), mode="async", timeout=PATIENCE)
        bad["w41"][1, 0] = np.nan
        with pytest.raises(NonFiniteGradientError, match="'w41'"):
            worker.push(bad, timeout=PATIENCE)
        too_large = dict(arrays(7), w13=np.full((3, 3), 1e300))  # infinite once it is a float32
        with pytest.raises(NonFiniteGradientError, match="'w13'"):
            worker.push(too_large, timeout=PATIENCE)
        with pytest.raises(ShapeError, match="w7"):
            worker.push(dict(arrays(7), w7=np.zeros((2, 2), np.float32)), timeout=PATIENCE)
        for name, value in worker.pull(timeout=PATIENCE).items():
            np.testing.assert_array_equal(value, start[name])
