"""Keras: `model.fit` with an optimizer on the servers, on each backend that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.imports import ROOT
from tests.inprocess import InProcessCluster
from tests.pace import allow
from tests.team import PATIENCE

BACKENDS = [name for name in ("torch", "jax", "tensorflow") if find_spec(name)]
if not BACKENDS:
    pytest.skip("no backend of Keras is installed", allow_module_level=True)
os.environ.setdefault("KERAS_BACKEND", BACKENDS[0])
keras = pytest.importorskip("keras")

import zmqps.keras  # noqa: E402
from zmqps import optim  # noqa: E402
from zmqps.errors import ConfigurationError, JobMismatchError, NonFiniteGradientError, OptimizerError  # noqa: E402

#: Keras' own way with numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
BACKEND = keras.backend.backend()
SLOW = pytest.mark.timeout(240)
X = np.random.default_rng(0).standard_normal((64, 6))
Y = np.random.default_rng(1).standard_normal((64, 2))


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """No layer has a name that depends on other tests; jax has float64."""
    keras.utils.clear_session()
    with nullcontext() if BACKEND != "jax" else __import__("jax").enable_x64(True):
        yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def worker() -> Iterator[zmqps.Worker]:
    with InProcessCluster(servers=2, slice_size=1024) as cluster, zmqps.connect(cluster.address) as worker:
        yield worker


def model(optimizer: Any, *more: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, activation="tanh", name="first"), *more, keras.layers.Dense(2, name="last")]
    made = keras.Sequential([keras.Input((6,)), *layers], name="net")
    made.compile(optimizer, loss="mse", **options)
    return made


def fit(made: Any, **options: Any) -> Any:
    made.fit(X, Y, batch_size=16, shuffle=False, verbose=0, **{"epochs": 3, **options})
    return made


def on_servers(worker: zmqps.Worker, optimizer: Any, **options: Any) -> Any:
    return zmqps.keras.Optimizer(worker, optimizer, mode="sync", timeout=PATIENCE, **options)


def values(made: Any) -> dict[str, Any]:
    return {v.path: keras.ops.convert_to_numpy(v) for v in made.trainable_variables}


def close(ours: Any, theirs: Any, tolerance: float) -> None:
    found, expected = values(ours), values(theirs)
    assert list(found) == list(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def decaying() -> Any:
    made = keras.optimizers.AdamW(0.01, weight_decay=0.3)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "sgd with decay": lambda: keras.optimizers.SGD(0.05, weight_decay=0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adam with decay": lambda: keras.optimizers.Adam(0.01, weight_decay=0.1, epsilon=1e-3),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "amsgrad with decay": lambda: keras.optimizers.AdamW(0.01, amsgrad=True),
    "adamw without the biases": decaying,
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "rmsprop with options": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True, epsilon=1e-3),
    "lion": lambda: keras.optimizers.Lion(0.001, weight_decay=0.1),
    "clipped by value": lambda: keras.optimizers.SGD(0.05, clipvalue=0.05),
    "clipped by norm": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.2),
    "a scaled loss": lambda: keras.optimizers.SGD(0.05, loss_scale_factor=64.0),
    "a schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.02, 12)),
    "another schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)),
}
#: Optimizers that Keras lacks, or that have another equation there.
NOT_IN_KERAS = {"ftrl", "rowwise_adagrad"}


def test_every_optimizer_that_keras_has_is_one_that_is_translated() -> None:
    made = {zmqps.keras.translated(make()).name for make in RULES.values()}
    assert made == set(optim.registry.BUILTIN) - NOT_IN_KERAS


#: Looser in float64: our norm has 1e-6 added, and Keras computes schedules in float32.
LOOSE = {"clipped by norm": 1e-5, "a schedule": 1e-6, "another schedule": 1e-6}
#: Keras rounds its own numbers, say 0.999, to float32 before TensorFlow computes with them.
ROUNDED = 5e-4 if BACKEND == "tensorflow" else 0.0


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-10)])
@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_does_what_that_of_keras_does(
    worker: zmqps.Worker, rule: str, dtype: str, tolerance: float
) -> None:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    theirs = fit(model(RULES[rule]()))
    ours = fit(model(on_servers(worker, RULES[rule]())))
    assert {str(v.dtype) for v in ours.trainable_variables} == {dtype}
    close(ours, theirs, max(tolerance, LOOSE.get(rule, 0.0), ROUNDED * (dtype == "float64")))
    assert int(ours.optimizer.iterations) == 12


def test_a_learning_rate_that_a_callback_changes_is_told(worker: zmqps.Worker) -> None:
    def halving() -> Any:
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)

    theirs = fit(model(keras.optimizers.Adam(0.02)), callbacks=[halving()])
    ours = fit(model(on_servers(worker, keras.optimizers.Adam(0.02))), callbacks=[halving()])
    close(ours, theirs, 2e-5)
    assert float(ours.optimizer.learning_rate) == pytest.approx(0.0025)


def test_a_chief_says_its_constant_rate_at_its_first_step(worker: zmqps.Worker) -> None:
    made = model(on_servers(worker, keras.optimizers.SGD(0.25)))
    made.optimizer.build(made.trainable_variables)
    assert worker.set_learning_rate(0.0, timeout=PATIENCE), "as a job that was restored goes on"
    before = [np.array(value) for value in made.get_weights()]
    fit(made, epochs=1)
    assert not np.array_equal(before[0], made.get_weights()[0])


def test_a_second_optimizer_on_one_job_is_refused(worker: zmqps.Worker) -> None:
    first = fit(model(on_servers(worker, "sgd")), epochs=1)
    second = on_servers(worker, "sgd")
    with pytest.raises(ConfigurationError, match=r"already trains another model.*connect\(job="):
        second.build(model("sgd").trainable_variables)
    fit(first, epochs=1)
    first.compile(on_servers(worker, "sgd"), loss="mse")
    fit(first, epochs=1)


def test_an_optimizer_whose_job_could_not_be_begun_makes_room_for_another(worker: zmqps.Worker) -> None:
    first, made = zmqps.keras.Optimizer(worker, "sgd", mode="bounded", staleness=-1), model("sgd")
    with pytest.raises(ConfigurationError, match="staleness must be a whole number at least 1, not -1"):
        first.build(made.trainable_variables)
    fit(model(on_servers(worker, "sgd")), epochs=1)


class Chief:
    """A worker that is the chief of a job whose versions are given."""

    is_chief = True

    def __init__(self, *versions: int) -> None:
        self.versions = list(versions)
        self.rates: list[float] = []

    def set_learning_rate(self, rate: float) -> bool:
        self.rates.append(rate)
        return True

    def push_pull(self, grads: Any, *, step: bool) -> Any:
        return zmqps.Params({}, version=self.versions.pop(0))


def rates_set(learning_rate: Any, rates: list[float], *versions: int) -> list[float]:
    """Return the rates that a chief sets in steps whose ends have these versions."""
    chief: Any = Chief(*versions)
    link = zmqps.keras.Link(chief, None, optim.sgd(learning_rate), {"mode": "sync"}, rate=rates[0])
    for number, rate in enumerate(rates):
        link.exchange({}, rate, number)
    return chief.rates


def test_a_chief_sends_its_rate_again_after_a_fallback_to_a_checkpoint() -> None:
    assert rates_set(0.5, [0.5, 0.25, 0.25], 1, 2, 3) == [0.5, 0.25]
    assert rates_set(0.5, [0.5, 0.25, 0.25, 0.25], 1, 2, 2, 3) == [0.5, 0.25, 0.25]


def test_a_schedule_of_zmqps_is_left_alone_after_a_fallback_unless_another_rate_was_set() -> None:
    schedule = optim.cosine_decay(0.5, decay_steps=10)
    assert rates_set(schedule, [0.5, 0.5, 0.5], 5, 4, 5) == []
    assert rates_set(schedule, [0.5, 0.25, 0.25, 0.25], 1, 2, 1, 2) == [0.25, 0.25]


def test_an_optimizer_of_zmqps_may_have_schedules_and_groups(worker: zmqps.Worker) -> None:
    spec = optim.sgd(optim.cosine_decay(0.1, decay_steps=12), groups=[optim.group("*/bias", frozen=True)])
    ours = fit(model(on_servers(worker, spec)))
    assert not values(ours)["net/first/bias"].any()
    theirs = model(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 12)))
    for layer in theirs.layers:
        layer.bias.trainable = False
    fit(theirs)
    np.testing.assert_allclose(values(ours)["net/last/kernel"], values(theirs)["net/last/kernel"], rtol=1e-4, atol=1e-5)


def test_the_number_somebody_wrote_is_what_servers_get() -> None:
    assert zmqps.keras.translated(keras.optimizers.SGD(0.1)) == optim.sgd(0.1)
    assert zmqps.keras.translated("adam") == optim.adam(1e-3, eps=1e-7, eps_hat=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: keras.optimizers.Nadam(), r"cannot apply Nadam.*Keras' Adadelta, .*SGD, or give"),
        (lambda: keras.optimizers.SGD(clipnorm=1.0), "SGD: clipnorm has no equivalent"),
        (lambda: keras.optimizers.SGD(use_ema=True), "SGD: use_ema has no equivalent"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "SGD: gradient_accumulation_steps has no"),
        (lambda: keras.optimizers.RMSprop(weight_decay=0.1), "RMSprop: weight_decay has no equivalent"),
        (lambda: keras.optimizers.SGD(momentum=0.9, weight_decay=0.1), "SGD without momentum"),
        (lambda: type("Adam", (keras.optimizers.Adam,), {})(), "cannot apply Adam of"),
    ],
)
def test_what_servers_cannot_do_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptimizerError, match=said):
        zmqps.keras.translated(make())


def test_variables_that_servers_cannot_know_are_refused(worker: zmqps.Worker) -> None:
    with pytest.raises(ConfigurationError, match=r"comes from zmqps\.connect"):
        zmqps.keras.Optimizer("tcp://127.0.0.1:1", "sgd")
    bound = keras.layers.Dense(4, name="bound", kernel_constraint="non_neg")
    with pytest.raises(ConfigurationError, match="'net/bound/kernel' has a constraint"):
        fit(model(on_servers(worker, "sgd"), bound))
    twice = [keras.Variable(np.zeros(2), name="w") for _ in range(2)]
    with pytest.raises(ConfigurationError, match="two variables are named 'w'"):
        zmqps.keras.named(twice)


def test_what_is_not_trained_by_gradients_stays_here(worker: zmqps.Worker) -> None:
    ours = model(on_servers(worker, "adam"), keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.1))
    ours.layers[0].trainable = False
    ours.compile(on_servers(worker, "adam"), loss="mse")
    before = values(ours)
    fit(ours)
    assert [*worker.pull(timeout=PATIENCE)] == [v.path for v in ours.trainable_variables] == [*before]
    assert "net/norm/gamma" in before
    assert "net/first/kernel" not in before
    assert keras.ops.convert_to_numpy(ours.get_layer("norm").moving_mean).any()


def test_who_comes_later_begins_where_the_job_is(worker: zmqps.Worker) -> None:
    first = fit(model(on_servers(worker, "sgd")))
    keras.utils.clear_session()
    with zmqps.connect(worker.address) as other:
        later = model(on_servers(other, "sgd"))
        later.set_weights([weight * 3 for weight in later.get_weights()])
        later.optimizer.build(later.trainable_variables)
        close(later, first, 0.0)
        assert int(later.optimizer.iterations) == 12
    keras.utils.clear_session()
    with zmqps.connect(worker.address) as other, pytest.raises(JobMismatchError):
        fit(model(on_servers(other, "adam")))


def test_an_observer_pulls_into_a_model(worker: zmqps.Worker) -> None:
    with zmqps.connect(worker.address, observer=True) as observer:
        trained = fit(model(on_servers(worker, "sgd")))
        keras.utils.clear_session()
        seen = model("sgd")
        assert zmqps.keras.pull(observer, seen, timeout=PATIENCE) == 12
        close(seen, trained, 0.0)


def test_a_gradient_that_is_not_finite_ends_fit_and_one_can_go_on(worker: zmqps.Worker) -> None:
    ours = fit(model(on_servers(worker, keras.optimizers.SGD(0.05))), epochs=1)
    failure = NonFiniteGradientError if BACKEND != "tensorflow" else Exception
    with pytest.raises(failure, match="contains NaN"):
        ours.fit(X * np.nan, Y, batch_size=16, verbose=0)
    zmqps.keras.pull(worker, ours)
    fit(ours, epochs=2, initial_epoch=0)
    close(ours, fit(model(keras.optimizers.SGD(0.05))), 2e-5)


def test_a_saved_model_has_the_optimizer_of_keras(worker: zmqps.Worker, tmp_path: Path) -> None:
    ours = fit(model(on_servers(worker, keras.optimizers.Adam(0.02, beta_1=0.8))))
    ours.save(tmp_path / "m.keras")
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        loaded = keras.models.load_model(tmp_path / "m.keras")
    for found, expected in zip(values(loaded).values(), values(ours).values(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert loaded.optimizer.get_config()["beta_1"] == 0.8
    assert not isinstance(loaded.optimizer, zmqps.keras.Optimizer)
    fit(loaded)


def test_a_saved_model_without_an_optimizer_of_keras_is_loaded_uncompiled(worker: zmqps.Worker, tmp_path: Path) -> None:
    place = tmp_path / "best.keras"
    ours = model(on_servers(worker, optim.sgd(0.05)))
    fit(ours, callbacks=[keras.callbacks.ModelCheckpoint(place)])
    with pytest.raises(Exception, match="compile=False"):
        keras.models.load_model(place)
    loaded = keras.models.load_model(place, compile=False)
    for found, expected in zip(values(loaded).values(), values(ours).values(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_loop_of_ones_own_applies_gradients(worker: zmqps.Worker) -> None:
    made = model("sgd")
    optimizer = on_servers(worker, keras.optimizers.SGD(1.0))
    with pytest.raises(ConfigurationError, match="say once which variables"):
        optimizer.apply([np.zeros(1)])
    before = values(made)
    ones = [keras.ops.ones(v.shape) for v in made.trainable_variables]
    optimizer.apply(ones, made.trainable_variables)
    optimizer.apply([None, *ones[1:]], made.trainable_variables)
    after = values(made)
    np.testing.assert_allclose(after["net/first/kernel"], before["net/first/kernel"] - 1, atol=1e-6)
    np.testing.assert_allclose(after["net/last/bias"], before["net/last/bias"] - 2, atol=1e-6)
    with pytest.raises(ConfigurationError, match="no gradient for any variable"):
        optimizer.apply([None] * 4, made.trainable_variables)
    with pytest.raises(ConfigurationError, match="'other' was not trainable when the job began"):
        optimizer.apply([keras.ops.ones(2)], [keras.Variable(np.zeros(2), name="other")])


def test_eager_steps_and_scaled_losses_train_as_well(worker: zmqps.Worker) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    theirs = fit(model(keras.optimizers.SGD(0.05), run_eagerly=True))
    ours = fit(model(on_servers(worker, keras.optimizers.SGD(0.05)), run_eagerly=True))
    assert type(ours.optimizer).__name__ == "LossScaleOptimizer"
    close(ours, theirs, 1e-4)


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX")
def test_jax_calls_out_where_it_computes_on_a_gpu(worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    ours = model(on_servers(worker, keras.optimizers.SGD(0.05)))
    with monkeypatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: "gpu")
        fit(ours)
    close(ours, fit(model(keras.optimizers.SGD(0.05))), 2e-5)


# --- processes: each has a backend of its own ---------------------------------------------------

TRAIN = """
import sys
import keras, numpy as np, zmqps, zmqps.keras
address, number, of, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = np.random.default_rng(3)
x, y, first, last = (rng.standard_normal(shape) for shape in ((64, 6), (64, 2), (6, 8), (8, 2)))
x, y = (array.reshape(4, 16, -1)[:, number::of].reshape(64 // of, -1) for array in (x, y))
rules = {
    "sgd": keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": keras.optimizers.Adam(keras.optimizers.schedules.PiecewiseConstantDecay([5], [0.02, 0.01])),
}
trained = {}
for rule, optimizer in rules.items():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh", name="first"), keras.layers.Dense(2, name="last")],
        name="net",
    )
    model.set_weights([first, np.zeros(8), last, np.zeros(2)])
    if address != "alone":
        worker = zmqps.connect(address, job=rule, timeout=20)
        optimizer = zmqps.keras.Optimizer(worker, optimizer)
    model.compile(optimizer, loss="mse")
    model.fit(x, y, batch_size=16 // of, epochs=4, shuffle=False, verbose=0)
    trained |= {f"{rule} {v.path}": keras.ops.convert_to_numpy(v) for v in model.trainable_variables}
    if address != "alone":
        worker.finish()
        worker.close()
np.savez(place, **trained)
"""


def start(backend: str, script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(*processes: subprocess.Popen[str]) -> str:
    try:
        said = [process.communicate(timeout=allow(100))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(said)
    return said[0]


PAIRS = [(backend, backend) for backend in BACKENDS] + [*pairwise(BACKENDS)]


@SLOW
@pytest.mark.skipif(BACKEND != BACKENDS[0], reason="done once, for all backends")
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_processes_make_the_steps_of_one_with_the_whole_batch(pair: tuple[str, str], tmp_path: Path) -> None:
    places = [tmp_path / f"{name}.npz" for name in ("alone", "0", "1")]
    with InProcessCluster(servers=2, workers=2, slice_size=128) as cluster:
        end(
            start(pair[0], TRAIN, "alone", 0, 1, places[0]),
            *(start(pair[n], TRAIN, cluster.address, n, 2, places[1 + n]) for n in range(2)),
        )
    alone, *halves = (np.load(place) for place in places)
    for half in halves:
        assert len(half) == len(alone) == 8
        for name in alone:
            np.testing.assert_allclose(half[name], alone[name], rtol=1e-5, atol=2e-6, err_msg=name)


ONE_PROCESSOR = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax, keras, zmqps, zmqps.keras
with zmqps.connect(sys.argv[1], timeout=20) as worker:
    model = keras.Sequential([keras.Input((1000,)), *[keras.layers.Dense(1000) for _ in range(4)]])
    optimizer = zmqps.keras.Optimizer(worker, "sgd")
    optimizer.build(model.trainable_variables)
    values, state = [v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]
    apply = jax.jit(optimizer.stateless_apply)
    for _ in range(10):
        values, state = apply(state, [value * 1e-3 for value in values], values)
    print(int(state[0]))
"""


@SLOW
@pytest.mark.skipif(BACKEND != "jax" or not hasattr(os, "sched_setaffinity"), reason="of JAX, on Linux")
def test_a_step_may_call_out_from_the_only_thread_that_computes() -> None:
    with InProcessCluster() as cluster:
        assert end(start(BACKEND, ONE_PROCESSOR, cluster.address)).splitlines()[-1] == "10"


@SLOW
@pytest.mark.skipif(BACKEND != BACKENDS[0], reason="this is the run with another backend")
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_all_of_this_holds_with_another_backend(backend: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).relative_to(ROOT))],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:]
