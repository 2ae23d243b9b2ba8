"""What front ends for frameworks share: the model that a job trains, the mean of its steps, and pytrees of JAX."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, ref

from zmqps import checks
from zmqps.client.groups import Steps
from zmqps.client.requests import Params
from zmqps.errors import ConfigurationError

#: The model of each worker: only one, because two would silently share their values.
_MODELS: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()


def claim(worker: Any, model: object) -> None:
    """Let a worker's job train a model; called by an optimizer when it is made.

    Parameters
    ----------
    worker : Worker
    model : object
        The model, or an object that represents it: compared by identity, and not kept alive. Repeating is harmless.

    Raises
    ------
    ConfigurationError
        The job trains another model, which still exists and was not released.
    """
    held = _MODELS.get(worker)
    trained = None if held is None else held()
    if trained is not None and trained is not model:
        raise ConfigurationError(
            "this worker's job already trains another model: a job has one model and one optimizer. Connect a second "
            'time for this one, with a separate job: zmqps.connect(job="discriminator")'
        )
    _MODELS[worker] = ref(model)


@contextmanager
def claimed(worker: Any, model: object) -> Iterator[None]:
    """Claim a model while its job is started; if that fails, the job is free for another model again.

    Parameters
    ----------
    worker, model
        As for `claim`, as are the errors.
    """
    held = _MODELS.get(worker)
    was_ours = held is not None and held() is model
    claim(worker, model)
    try:
        yield
    except BaseException:
        if not was_ours:
            release(worker, model)
        raise


def release(worker: Any, model: object) -> None:
    """Release the job for another model; a model that it does not train changes nothing."""
    held = _MODELS.get(worker)
    if held is not None and held() is model:
        del _MODELS[worker]


def over_workers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `zmqps.Worker.init` with the mean of a framework: over all workers, where there are steps."""
    if options.get("mode", "sync") != "sync":
        return dict(options)
    steps = checks.group("steps", options.get("steps"), Steps)
    return {**options, "steps": steps if steps.mean is not None else replace(steps, mean="workers")}


# --- pytrees --------------------------------------------------------------------------------------

_registered = False


def register() -> None:
    """Make ``jax.tree.map`` and the like accept `Params`; repeating is harmless."""
    global _registered
    if not _registered:
        _registered = True
        import jax

        jax.tree_util.register_pytree_with_keys(Params, _flatten, _unflatten)


def register_where_used() -> None:
    """`register`, if the program has imported JAX: others need not have it."""
    if not _registered and "jax" in sys.modules:
        register()


def _flatten(params: Params) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    import jax

    names = tuple(sorted(params))  # as JAX does with dicts
    return [(jax.tree_util.DictKey(name), params[name]) for name in names], (names, params.version)


def _unflatten(kept: tuple[Any, ...], values: Iterable[Any]) -> Params:
    names, version = kept
    return Params(dict(zip(names, values, strict=True)), version)
