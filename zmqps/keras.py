"""Keras 3: an optimizer for ``model.compile`` whose updates the servers compute, with any backend.

Needs the extra ``keras``, and a backend: PyTorch, JAX or TensorFlow. Parameters are called as Keras' paths say:
``sequential/dense/kernel``. What is not trained by gradients (moving statistics, seeds) stays with each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from zmqps.extras import lacks_extra

try:
    import keras
except ModuleNotFoundError as error:
    raise lacks_extra("keras", error) from error

from zmqps import checks, optim
from zmqps.client.frameworks import claimed, over_workers
from zmqps.errors import ConfigurationError, OptimizerError, ShapeError
from zmqps.optim import OptimizerSpec
from zmqps.worker import Worker

#: Options of every optimizer of Keras that have no equivalent here.
WITHOUT_EQUIVALENT = {
    "clipnorm": "it clips each variable by its own norm; take global_clipnorm or clipvalue",
    "use_ema": "the average would be of one worker's values",
    "gradient_accumulation_steps": "it would keep gradients from the servers; take larger batches, or more workers",
}


def _adam(config: Mapping[str, Any], options: dict[str, Any]) -> OptimizerSpec:
    options |= {"b1": config["beta_1"], "b2": config["beta_2"], "eps": config["epsilon"], "eps_hat": True}
    if config["amsgrad"]:
        return optim.amsgrad(**options, decoupled=options["weight_decay"] > 0)
    return optim.adamw(**options) if options["weight_decay"] > 0 else optim.adam(**options)


def _adadelta(config: Mapping[str, Any], options: dict[str, Any]) -> OptimizerSpec:
    return optim.adadelta(**options, rho=config["rho"], eps=config["epsilon"])


def _adagrad(config: Mapping[str, Any], options: dict[str, Any]) -> OptimizerSpec:
    begin = config["initial_accumulator_value"]
    return optim.adagrad(**options, initial_accumulator_value=begin, eps=config["epsilon"], eps_in_sqrt=True)


def _lion(config: Mapping[str, Any], options: dict[str, Any]) -> OptimizerSpec:
    return optim.lion(**options, b1=config["beta_1"], b2=config["beta_2"])


def _rmsprop(config: Mapping[str, Any], options: dict[str, Any]) -> OptimizerSpec:
    options |= {"decay": config["rho"], "eps": config["epsilon"], "eps_in_sqrt": True}
    return optim.rmsprop(**options, momentum=config["momentum"], centered=config["centered"])


def _sgd(config: Mapping[str, Any], options: dict[str, Any]) -> OptimizerSpec:
    momentum = config["momentum"]
    return optim.sgd(**options, momentum=momentum, nesterov=bool(config["nesterov"] and momentum))


#: Optimizer of Keras -> what makes ours of its numbers.
TWINS: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], OptimizerSpec]] = {
    "Adadelta": _adadelta,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "AdamW": _adam,
    "Lion": _lion,
    "RMSprop": _rmsprop,
    "SGD": _sgd,
}
#: In those of Keras weight decay acts on the values, separately from the gradient's step; these have such a form here.
DECAYING = ("Adam", "AdamW", "Lion", "SGD")


def translated(optimizer: Any) -> OptimizerSpec:
    """Return the optimizer of `zmqps.optim` with the equation and the numbers of one of Keras.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer or str
        A schedule in it is that of Keras, so the result has the first of its learning rates.

    Raises
    ------
    OptimizerError
        There is none with this equation, or with one of its options; says which there are.

    Examples
    --------
    >>> zmqps.keras.translated(keras.optimizers.SGD(0.1, momentum=0.9))  # doctest: +SKIP
    """
    optimizer = keras.optimizers.get(optimizer)
    name = type(optimizer).__name__
    if name not in TWINS or not type(optimizer).__module__.startswith("keras."):
        raise OptimizerError(
            f"the servers cannot apply {name} of {type(optimizer).__module__}; they can Keras' {', '.join(TWINS)}, or "
            "give an optimizer of zmqps.optim"
        )
    config = optimizer.get_config()
    for option, why in WITHOUT_EQUIVALENT.items():
        if config.get(option):
            raise OptimizerError(f"{name}: {option} has no equivalent on servers: {why}")
    decay = config["weight_decay"] or 0.0
    if decay and (name not in DECAYING or config.get("momentum")):
        raise OptimizerError(
            f"{name}: weight_decay has no equivalent here, for Keras decays the values separately from the gradient; "
            f"{', '.join(DECAYING)} can, SGD without momentum"
        )
    rate = _number(optimizer.learning_rate)
    if isinstance(config["learning_rate"], float):
        rate = _shortest(rate, optimizer.learning_rate)
    options = {
        "learning_rate": rate,
        "weight_decay": decay,
        "clip_value": config["clipvalue"] or None,
        "clip_norm": config["global_clipnorm"] or None,
    }
    return TWINS[name](config, options)


def named(variables: Iterable[Any]) -> dict[str, Any]:
    """Return variables by what they are called on the servers, their paths.

    Parameters
    ----------
    variables : iterable of keras.Variable
        ``model.trainable_variables``.

    Raises
    ------
    ConfigurationError
        Two have the same path, as layers of the same name.
    """
    found: dict[str, Any] = {}
    for variable in variables:
        if variable.path in found:
            raise ConfigurationError(f"two variables are named {variable.path!r}: give their layers different names")
        found[variable.path] = variable
    return found


def pull(worker: Worker, model: Any, **options: Any) -> int:
    """Put the job's values into a model; return their version.

    Parameters
    ----------
    worker : Worker
        An observer, too.
    model : keras.Model
        Built, with the layers of the job's.
    **options
        As for `zmqps.Worker.pull`.
    """
    variables = named(_trained(model.trainable_variables))
    values = worker.pull(list(variables), **options)
    _fill(variables, values)
    return values.version


@keras.saving.register_keras_serializable(package="zmqps")
class Optimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """An optimizer of Keras whose updates the servers compute.

    ``model.fit`` starts the job or joins it, and begins with its values. After each batch it pushes the gradients,
    waits as the mode demands, and continues with the values after them. A learning rate that changes, by a schedule or
    a callback such as ``ReduceLROnPlateau``, is sent before the next push; only the chief's takes effect. In the
    synchronous mode, the default, the mean of a step is over all workers unless you pass
    ``steps=zmqps.Steps(mean="pushed")``.

    Parameters
    ----------
    worker : Worker
    optimizer : keras.optimizers.Optimizer, str or OptimizerSpec
        That of Keras is `translated`; one of `zmqps.optim` may have its own schedules and groups.
    name : str, optional
    **options
        As for `zmqps.Worker.init`: ``mode="async"``, for instance.

    Raises
    ------
    OptimizerError
        As `translated`.

    Examples
    --------
    >>> worker = zmqps.connect()  # doctest: +SKIP
    >>> optimizer = zmqps.keras.Optimizer(worker, keras.optimizers.Adam(1e-3))  # doctest: +SKIP
    >>> model.compile(optimizer, loss="mse")  # doctest: +SKIP
    >>> model.fit(x[worker.rank :: worker.num_workers], y[worker.rank :: worker.num_workers])  # doctest: +SKIP
    """

    def __init__(self, worker: Worker, optimizer: Any, *, name: str | None = None, **options: Any) -> None:
        if not isinstance(worker, Worker):
            raise ConfigurationError(f"worker comes from zmqps.connect(); got {checks.shown(worker)}")
        if isinstance(optimizer, OptimizerSpec):
            theirs, spec, scale = None, optimizer, None
            rate = spec.learning_rate
            rate = float(rate(0) if isinstance(rate, optim.Schedule) else rate)
        else:
            theirs = keras.optimizers.get(optimizer)
            spec, scale = translated(theirs), theirs.loss_scale_factor
            rate = theirs._learning_rate  # the schedule itself, which `learning_rate` evaluates
            rate = rate if callable(rate) and not isinstance(rate, keras.Variable) else spec.learning_rate
        super().__init__(learning_rate=rate, loss_scale_factor=scale, name=name)
        self._link = Link(worker, theirs, spec, options, rate=_number(self.learning_rate))

    def build(self, variables: Sequence[Any]) -> None:
        """Start the job with the variables' values, or join it and give them its values."""
        if self.built:
            return
        with _outside_of_functions():
            step = self._link.begin(variables)
            super().build(variables)
            self.iterations.assign(step)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Push gradients, and give the variables the values after them."""
        if not self.built and trainable_variables is None:
            raise ConfigurationError("say once which variables the gradients are of: apply(grads, variables)")
        variables = self._link.variables if trainable_variables is None else list(trainable_variables)
        self.build(variables)
        pushed, places = {}, {}
        for variable, grad in zip(variables, grads, strict=True):
            if grad is None:
                continue
            if _overwritten(variable):
                variable.assign(grad)
                continue
            if variable.path not in self._link.names:
                raise ConfigurationError(
                    f"{variable.path!r} was not trainable when the job began: compile with a new optimizer"
                )
            scale = self.loss_scale_factor
            pushed[variable.path] = grad if scale is None else grad / scale
            places[variable.path] = variable
        if not pushed:
            raise ConfigurationError("there is no gradient for any variable: does the loss depend on them?")
        values, step = _called(self._link, pushed, places, self.learning_rate, self.iterations)
        for name, variable in places.items():
            variable.assign(values[name])
        self.iterations.assign(step)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Wait for the last push; `fit` calls this at its end."""
        error, self._link.error = self._link.error, None
        if error is not None:  # JAX has raised it as one of its own, and lost what its step was given
            self.iterations.assign(self._link.step)
            if isinstance(self._learning_rate, keras.Variable):
                self._learning_rate.assign(self._link.rate)
            raise error
        for variable in var_list:
            keras.ops.convert_to_numpy(variable)

    def get_config(self) -> dict[str, Any]:
        theirs = self._link.theirs
        return {"optimizer": None if theirs is None else keras.optimizers.serialize(theirs)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Return the optimizer of Keras, for a model that is loaded has no worker; its state is in the checkpoints."""
        if config["optimizer"] is None:
            raise ConfigurationError(
                "the model was trained with an optimizer of zmqps.optim, which Keras does not have: load it with "
                "compile=False"
            )
        return keras.optimizers.deserialize(config["optimizer"], custom_objects)


class Link:
    """What an `Optimizer` has to do with its job; Keras looks into an optimizer's own attributes."""

    def __init__(
        self, worker: Worker, theirs: Any, spec: OptimizerSpec, options: Mapping[str, Any], rate: float
    ) -> None:
        self.worker = worker
        self.theirs = theirs
        self.spec = spec
        self.options = dict(options)
        #: While a schedule of `zmqps.optim` is left alone, the rate that it began with; None once another was set.
        self.scheduled = rate if isinstance(spec.learning_rate, optim.Schedule) else None
        self.sent = self.scheduled  # the learning rate that this worker has set
        self.version = 0  # of the values that the last push returned
        self.names: frozenset[str] = frozenset()
        self.variables: list[Any] = []
        #: What `exchange` was called with last, and how it failed.
        self.rate, self.step = rate, 0
        self.error: BaseException | None = None

    @property
    def steps(self) -> bool:
        """Whether a version counts the steps of the job."""
        return bool(self.options.get("mode", "sync") == "sync")

    def begin(self, variables: Sequence[Any]) -> int:
        """Start the job or join it; give the variables its values, and return how many steps there were."""
        if keras.distribution.distribution() is not None:
            raise ConfigurationError("a keras.distribution is set: each process trains on one device")
        trained = named(_trained(variables))
        for name, variable in trained.items():
            if variable.constraint is not None:
                raise ConfigurationError(f"{name!r} has a constraint, of which the servers know nothing: leave it out")
        with claimed(self.worker, next(iter(trained.values()), self)):
            self.worker.init(
                {name: keras.ops.convert_to_numpy(variable) for name, variable in trained.items()},
                optimizer=self._with_groups(trained),
                **over_workers(self.options),
            )
            values = self.worker.pull(list(trained), timeout=self.options.get("timeout"))
            _fill(trained, values)
        self.names, self.variables = frozenset(trained), list(variables)
        return values.version if self.steps else 0

    def _with_groups(self, variables: Mapping[str, Any]) -> OptimizerSpec:
        """Return the optimizer without weight decay for what `exclude_from_weight_decay` says."""
        if self.theirs is None or not self.theirs.weight_decay:
            return self.spec
        left_out = [name for name, variable in variables.items() if not self.theirs._use_weight_decay(variable)]
        return replace(self.spec, groups=[optim.group(names=left_out, weight_decay=0.0)]) if left_out else self.spec

    def exchange(self, grads: Mapping[str, Any], rate: Any, step: Any) -> tuple[Mapping[str, Any], int]:
        """Push gradients; return the values after them, and the number of the next step."""
        self.rate, self.step, self.error = float(rate), int(step), None
        try:
            self._follow_rate()
            values = self.worker.push_pull(grads, step=True)
        except BaseException as error:
            self.error = error
            raise
        if values.version <= self.version:  # the job went back to a checkpoint, and so did the rate in force
            self.sent = self.scheduled
        self.version = values.version
        return values, values.version if self.steps else self.step + 1

    def _follow_rate(self) -> None:
        """Set the learning rate, if this is the chief: also at its first step, since the job may have another."""
        if not self.worker.is_chief or self.rate == self.sent:
            return
        rate, own = self.rate, self.spec.learning_rate
        if not isinstance(own, optim.Schedule) and np.float32(own) == np.float32(rate):
            rate = own  # which a variable holds rounded
        if self.worker.set_learning_rate(rate):
            self.sent, self.scheduled = self.rate, None


def _called(
    link: Link, grads: Mapping[str, Any], places: Mapping[str, Any], rate: Any, step: Any
) -> tuple[Mapping[str, Any], Any]:
    """Return what `Link.exchange` does, now or whenever a compiled step comes to it."""
    backend = keras.backend.backend()
    rate, step = keras.ops.convert_to_tensor(rate), keras.ops.convert_to_tensor(step)
    if backend == "jax":
        import jax

        if any(isinstance(value, jax.core.Tracer) for value in (*grads.values(), rate, step)):
            return _in_jax(link, grads, places, rate, step)
    if backend == "tensorflow":
        import tensorflow as tf

        grads = {name: tf.convert_to_tensor(grad) for name, grad in grads.items()}  # also those of embeddings
        if not tf.executing_eagerly():
            return _in_tensorflow(link, grads, places, rate, step)
    arrays = {name: keras.ops.convert_to_numpy(grad) for name, grad in grads.items()}
    return link.exchange(arrays, keras.ops.convert_to_numpy(rate), keras.ops.convert_to_numpy(step))


def _in_jax(
    link: Link, grads: Mapping[str, Any], places: Mapping[str, Any], rate: Any, step: Any
) -> tuple[Mapping[str, Any], Any]:
    """Call from a step under ``jax.jit``."""
    import jax

    shapes = (
        {name: jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype) for name, variable in places.items()},
        jax.ShapeDtypeStruct((), step.dtype),
    )
    if jax.default_backend() == "cpu":
        try:
            from jax.experimental.buffer_callback import buffer_callback
        except ImportError as error:
            raise ConfigurationError(f"Keras' steps can push from JAX 0.6.1 on, not from {jax.__version__}") from error

        # `io_callback` has its arrays copied by the threads that compute: called from the only one, it waits for ever.
        def fill(_: Any, out: Any, grads: Any, rate: Any, step: Any) -> None:
            arrays = {name: np.asarray(grad) for name, grad in grads.items()}
            values, number = link.exchange(arrays, np.asarray(rate), np.asarray(step))
            for name, place in out[0].items():
                np.asarray(place)[...] = values[name]
            np.asarray(out[1])[...] = number

        return buffer_callback(fill, shapes, has_side_effect=True)(dict(grads), rate, step)  # type: ignore[no-any-return]

    from jax.experimental import io_callback

    def answer(grads: Any, rate: Any, step: Any) -> Any:
        arrays = {name: np.asarray(grad) for name, grad in grads.items()}
        values, number = link.exchange(arrays, np.asarray(rate), np.asarray(step))
        return {n: np.asarray(values[n], shape.dtype) for n, shape in shapes[0].items()}, np.asarray(number, step.dtype)

    return io_callback(answer, shapes, dict(grads), rate, step, ordered=True)  # type: ignore[no-any-return]


def _in_tensorflow(
    link: Link, grads: Mapping[str, Any], places: Mapping[str, Any], rate: Any, step: Any
) -> tuple[Mapping[str, Any], Any]:
    """Call from a step in a ``tf.function``."""
    import tensorflow as tf

    def answer(rate: Any, step: Any, *arrays: Any) -> list[Any]:
        values, number = link.exchange(dict(zip(grads, arrays, strict=True)), rate, step)
        return [np.asarray(number, step.dtype), *(np.asarray(values[n], places[n].dtype) for n in grads)]

    dtypes = [step.dtype, *(tf.as_dtype(places[name].dtype) for name in grads)]
    number, *values = tf.numpy_function(answer, [rate, step, *grads.values()], dtypes)
    number.set_shape(())
    for name, value in zip(grads, values, strict=True):
        value.set_shape(places[name].shape)
    return dict(zip(grads, values, strict=True)), number


def _outside_of_functions() -> Any:
    """Return a context in which TensorFlow computes at once, as the others do."""
    if keras.backend.backend() != "tensorflow":
        return nullcontext()
    import tensorflow as tf

    return tf.init_scope()


def _trained(variables: Iterable[Any]) -> list[Any]:
    return [variable for variable in variables if not _overwritten(variable)]


def _overwritten(variable: Any) -> bool:
    """Whether a variable takes its gradient for its value, as the scales of float8: that is not an update."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _fill(variables: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, variable in variables.items():
        if values[name].shape != tuple(variable.shape):
            raise ShapeError(name=name, got=str(tuple(variable.shape)), expected=str(values[name].shape))
        variable.assign(values[name])


def _number(rate: Any) -> float:
    return float(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(rate)))


def _shortest(rate: float, variable: Any) -> float:
    """Return the number as written, such as 0.1, that a variable holds rounded."""
    dtype = keras.backend.standardize_dtype(getattr(variable, "dtype", "float64"))
    return float(str(np.float32(rate))) if dtype == "float32" else rate
