"""JAX: pytrees in and out, and optimizers of servers that do what optax's do."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.inprocess import InProcessCluster
from tests.pace import allow
from tests.team import PATIENCE

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import zmqps.jax  # noqa: E402
from zmqps import optim  # noqa: E402
from zmqps.errors import ConfigurationError, DtypeError, ShapeError  # noqa: E402

Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any
    b: Any


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def worker() -> Iterator[zmqps.Worker]:
    with InProcessCluster(servers=2, slice_size=1024) as cluster, zmqps.connect(cluster.address) as worker:
        yield worker


def model(dtype: str = "float64") -> Any:
    rng = np.random.default_rng(7)

    def values(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    return {
        "layers": [Layer(values(20, 30), values(30)), Layer(values(30, 5), values(5))],
        "scales": (values(3), Pair(values(2), None)),
        "one": values(),
    }


def loss(params: Any, x: Any, y: Any) -> Any:
    first, last = params["layers"]
    hidden = jnp.tanh(x @ first.w + first.b)
    rest = params["scales"][0].sum() + params["scales"][1].left.sum() + params["one"]
    return ((hidden @ last.w + last.b + rest - y) ** 2).mean()


def batch(step: int, size: int = 16) -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    return jnp.asarray(rng.standard_normal((size, 20))), jnp.asarray(rng.standard_normal((size, 5)))


def close(ours: Any, theirs: Any, tolerance: float) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def train(tx: Any, params: Any, gradients: Callable[[Any, int], Any], steps: int = 20) -> Any:
    """As any loop with optax."""
    state = tx.init(params)
    for step in range(steps):
        updates, state = tx.update(gradients(params, step), state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_leaves_are_called_as_their_paths_say() -> None:
    assert list(zmqps.jax.named(model())) == [
        *("layers/0/w", "layers/0/b", "layers/1/w", "layers/1/b", "one", "scales/0", "scales/1/left"),
    ]
    assert list(zmqps.jax.named(jnp.zeros(3))) == [zmqps.jax.ALONE]


def test_leaves_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two leaves are named 'a/b'"):
        zmqps.jax.named({"a": {"b": jnp.zeros(1)}, "a/b": jnp.zeros(1)})


#: Rules of both: ours, optax's, and whether optax's own defaults are the same.
RULES = {
    "sgd": (optim.sgd(0.1), lambda: optax.sgd(0.1)),
    "momentum": (optim.sgd(0.05, momentum=0.9), lambda: optax.sgd(0.05, momentum=0.9)),
    "nesterov": (optim.sgd(0.05, momentum=0.9, nesterov=True), lambda: optax.sgd(0.05, momentum=0.9, nesterov=True)),
    "adam": (optim.adam(1e-2), lambda: optax.adam(1e-2)),
    "adamw": (optim.adamw(1e-2, weight_decay=0.05), lambda: optax.adamw(1e-2, weight_decay=0.05)),
    "lion": (optim.lion(1e-3, weight_decay=0.05), lambda: optax.lion(1e-3, weight_decay=0.05)),
    "adam with a schedule": (
        optim.adam(optim.linear_warmup(optim.cosine_decay(1e-2, decay_steps=15), warmup_steps=5)),
        lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 20)),
    ),
    "adagrad, with optax's numbers": (
        optim.adagrad(0.1, initial_accumulator_value=0.1, eps=1e-30),
        lambda: optax.adagrad(0.1, initial_accumulator_value=0.1, eps=1e-30),
    ),
    "adagrad, with eps under the root": (
        optim.adagrad(0.1, initial_accumulator_value=0.1, eps=1e-7, eps_in_sqrt=True),
        lambda: optax.adagrad(0.1),
    ),
    "rmsprop, with eps under the root": (
        optim.rmsprop(0.01, decay=0.9, eps=1e-8, eps_in_sqrt=True),
        lambda: optax.rmsprop(0.01, decay=0.9),
    ),
    "rmsprop, with optax's numbers": (
        optim.rmsprop(0.01, decay=0.9, eps=1e-8),
        lambda: optax.rmsprop(0.01, decay=0.9, eps=1e-8, eps_in_sqrt=False),
    ),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-10)])
@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_does_what_that_of_optax_does(worker: Any, rule: str, dtype: str, tolerance: float) -> None:
    ours, theirs = RULES[rule]
    if "schedule" in rule:  # optax computes them in float32
        tolerance = max(tolerance, 1e-7)
    gradient = jax.jit(jax.grad(loss))

    def gradients(params: Any, step: int) -> Any:
        x, y = batch(step)
        return gradient(params, x.astype(dtype), y.astype(dtype))

    tx = zmqps.jax.optimizer(worker, ours, mode="sync", timeout=PATIENCE)
    close(train(tx, model(dtype), gradients), train(theirs(), model(dtype), gradients), tolerance)


def test_a_second_optimizer_on_one_job_is_refused(worker: zmqps.Worker) -> None:
    first = zmqps.jax.optimizer(worker, optim.sgd(0.1), mode="sync", timeout=PATIENCE)
    first.init(model())
    first.init(model())  # the same optimizer may join its job again
    with pytest.raises(ConfigurationError, match=r"already trains another model.*connect\(job="):
        zmqps.jax.optimizer(worker, optim.sgd(0.1), mode="sync", timeout=PATIENCE).init(model())


def test_an_optimizer_whose_job_could_not_be_begun_makes_room_for_another(worker: zmqps.Worker) -> None:
    first = zmqps.jax.optimizer(worker, optim.sgd(0.1), mode="bounded", staleness=-1, timeout=PATIENCE)
    with pytest.raises(ConfigurationError, match="staleness must be a whole number at least 1, not -1"):
        first.init(model())
    zmqps.jax.optimizer(worker, optim.sgd(0.1), mode="sync", timeout=PATIENCE).init(model())


def test_two_workers_make_the_steps_of_one_with_the_whole_batch() -> None:
    gradient = jax.jit(jax.grad(loss))

    def of_half(number: int) -> Callable[[Any, int], Any]:
        def gradients(params: Any, step: int) -> Any:
            x, y = batch(step)
            return gradient(params, x[number::2], y[number::2])

        return gradients

    def run(address: str, number: int) -> Any:
        with jax.enable_x64(True), zmqps.connect(address, timeout=PATIENCE) as worker:
            tx = zmqps.jax.optimizer(worker, optim.adam(1e-2), mode="sync", timeout=PATIENCE)
            return train(tx, model(), of_half(number))

    alone = train(optax.adam(1e-2), model(), lambda params, step: gradient(params, *batch(step)))
    with InProcessCluster(servers=2, workers=2) as cluster, ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda number: run(cluster.address, number), range(2)):
            close(found, alone, 1e-10)


def test_the_direct_way_returns_the_servers_values_to_the_bit(worker: Any) -> None:
    params = zmqps.jax.init(worker, model("float32"), optimizer=optim.adam(1e-2), mode="sync", timeout=PATIENCE)
    gradient = jax.jit(jax.grad(loss))
    for step in range(3):
        x, y = batch(step)
        params = zmqps.jax.push_pull(worker, gradient(params, x.astype("float32"), y.astype("float32")))
    pulled = worker.pull(timeout=PATIENCE)
    for name, leaf in zmqps.jax.named(params).items():
        np.testing.assert_array_equal(leaf, pulled[name])


def test_models_of_flax_are_pytrees_as_any(worker: Any) -> None:
    linen = pytest.importorskip("flax.linen")

    class Model(linen.Module):  # type: ignore[misc,name-defined,unused-ignore]
        """Two layers."""

        @linen.compact  # type: ignore[untyped-decorator,unused-ignore]
        def __call__(self, x: Any) -> Any:
            """Return five numbers."""
            return linen.Dense(5)(jnp.tanh(linen.Dense(8)(x)))

    net = Model()
    params = net.init(jax.random.key(0), batch(0)[0])

    @jax.jit
    def gradients(params: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda params: ((net.apply(params, x) - y) ** 2).mean())(params)

    ours = zmqps.jax.optimizer(worker, optim.adam(1e-2), mode="sync", timeout=PATIENCE)
    expected = train(optax.adam(1e-2), params, lambda params, step: gradients(params, *batch(step)))
    close(train(ours, params, lambda params, step: gradients(params, *batch(step))), expected, 1e-6)
    assert "params/Dense_0/kernel" in [parameter.name for parameter in worker.parameters]


def test_what_was_pulled_is_not_written_to_by_later_steps(worker: Any) -> None:
    params = zmqps.jax.init(worker, {"w": jnp.zeros(100_000)}, optimizer=optim.sgd(1.0), mode="async", timeout=PATIENCE)
    kept = [params]
    for _ in range(6):
        kept.append(zmqps.jax.push_pull(worker, {"w": jnp.ones(100_000)}))
    for step, old in enumerate(kept):
        np.testing.assert_array_equal(old["w"], np.full(100_000, -float(step)))


def test_half_precision_is_trained_in_float32_on_the_servers(worker: Any) -> None:
    params = {"w": jnp.ones(40, jnp.bfloat16)}
    tx = zmqps.jax.optimizer(worker, optim.sgd(1e-4), mode="async", timeout=PATIENCE)
    found = train(tx, params, lambda params, step: {"w": jnp.ones(40, jnp.bfloat16)}, steps=100)
    assert found["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(worker.pull(timeout=PATIENCE)["w"], 0.99, rtol=1e-5)
    np.testing.assert_allclose(found["w"].astype("float32"), 0.99, rtol=1e-2)


def test_gradients_of_integers_and_of_nothing_are_left_out(worker: Any) -> None:
    values = {"w": jnp.ones(4), "frozen": jnp.ones(3)}
    spec = optim.sgd(1.0, groups=[optim.group("frozen", frozen=True)])
    zmqps.jax.init(worker, values, optimizer=spec, mode="sync", timeout=PATIENCE)
    integers = jax.grad(lambda n: 1.0, allow_int=True)(jnp.arange(3))
    found = zmqps.jax.push_pull(worker, {"w": jnp.ones(4), "table": integers, "frozen": None})
    np.testing.assert_array_equal(found["w"], np.zeros(4))
    assert found["frozen"] is None


def test_it_is_not_for_the_inside_of_jit(worker: Any) -> None:
    tx = zmqps.jax.optimizer(worker, optim.sgd(0.1), mode="async", timeout=PATIENCE)
    params = {"w": jnp.ones(4)}
    state = tx.init(params)
    with pytest.raises(ConfigurationError, match=r"inside jax\.jit"):
        jax.jit(lambda g: tx.update(g, state, params))(params)
    with pytest.raises(ConfigurationError, match=r"update\(grads, state, params\)"):
        tx.update(params, state)


def test_a_worker_that_begins_with_other_values_is_told(worker: Any, caplog: pytest.LogCaptureFixture) -> None:
    tx = zmqps.jax.optimizer(worker, optim.sgd(0.1), mode="async", timeout=PATIENCE)
    tx.init({"w": jnp.ones(4)})
    assert "other values" not in caplog.text
    tx.init({"w": jnp.zeros(4)})
    assert "begin with params = zmqps.jax.pull(worker, params)" in caplog.text
    np.testing.assert_array_equal(zmqps.jax.pull(worker, {"w": jnp.zeros(4)})["w"], np.ones(4))


def test_what_cannot_be_trained_is_refused(worker: Any) -> None:
    with pytest.raises(DtypeError, match="'n' has dtype"):
        zmqps.jax.init(worker, {"n": jnp.arange(3)}, optimizer=optim.sgd(0.1), mode="async", timeout=PATIENCE)
    zmqps.jax.init(worker, {"w": jnp.ones((2, 3))}, optimizer=optim.sgd(0.1), mode="async", timeout=PATIENCE)
    with pytest.raises(ShapeError, match="'w' has shape"):
        zmqps.jax.pull(worker, {"w": jnp.ones((3, 2))})


def test_what_a_pull_returns_is_a_pytree(worker: Any) -> None:
    worker.init({"b": np.ones(3), "a": np.zeros(2)}, optimizer=optim.sgd(0.1), mode="async", timeout=PATIENCE)
    pulled = worker.pull(timeout=PATIENCE)
    doubled = jax.tree.map(lambda value: 2 * jnp.asarray(value), pulled)
    assert type(doubled) is zmqps.Params
    assert doubled.version == pulled.version
    np.testing.assert_array_equal(doubled["b"], [2, 2, 2])
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(pulled)[0]]
    assert paths == ["['a']", "['b']"]


def test_it_is_one_as_soon_as_a_program_with_jax_connects() -> None:
    script = (
        "import jax, jax.numpy as jnp, numpy as np, sys, zmqps\n"
        "with zmqps.connect(sys.argv[1]) as worker:\n"
        "    worker.init({'w': np.ones(3)}, optimizer=zmqps.optim.sgd(0.1), mode='async')\n"
        "    print(jax.tree.map(jnp.asarray, worker.pull())['w'].sum(), 'zmqps.jax' in sys.modules)\n"
    )
    with InProcessCluster() as cluster:
        run = subprocess.run(
            [sys.executable, "-c", script, cluster.address],
            capture_output=True,
            text=True,
            timeout=allow(50),
            check=False,
        )
    assert (run.stdout, run.returncode) == ("3.0 False\n", 0), run.stderr


def test_rows_of_a_table_are_pulled_and_pushed_around_a_compiled_step(worker: zmqps.Worker) -> None:
    rng = np.random.default_rng(5)
    batches = [(rng.zipf(1.4, (6, 2)) % 20, rng.normal(size=6).astype(np.float32)) for _ in range(8)]
    start = {"w": np.linspace(-1, 1, 3, dtype=np.float32)}

    @jax.jit
    def step(params: Any, rows: Any, places: Any, y: Any) -> Any:
        def loss(params: Any, rows: Any) -> Any:
            return jnp.mean((rows[places].sum(1) @ params["w"] - y) ** 2)

        return jax.grad(loss, argnums=(0, 1))(params, rows)

    table = zmqps.table(3, optimizer=optim.sgd(0.1), initial=zmqps.initial.constant(0.5))
    params = zmqps.jax.init(worker, start, optimizer=optim.sgd(0.1), mode="sync", tables={"items": table})
    items = worker.table("items")
    expected, whole = {"w": start["w"].copy()}, np.full((20, 3), 0.5, np.float32)
    for ids, y in batches:
        grads, row_grads = step(expected, whole, ids, y)
        expected, whole = {"w": expected["w"] - 0.1 * np.asarray(grads["w"])}, whole - 0.1 * np.asarray(row_grads)
        unique, places = np.unique(ids, return_inverse=True)
        grads, row_grads = step(params, items.pull(unique, timeout=PATIENCE), places.reshape(ids.shape), y)
        items.push(unique, row_grads, timeout=PATIENCE)
        params = zmqps.jax.push_pull(worker, grads)
    np.testing.assert_allclose(params["w"], expected["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(items.rows(np.arange(20), timeout=PATIENCE), whole, rtol=1e-5, atol=1e-6)
