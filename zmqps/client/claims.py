"""Which model a worker's job trains: only one, because two would silently share their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

from zmqps.errors import ConfigurationError

_MODELS: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()  # by worker


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
            'time for this one, with a job of its own: zmqps.connect(job="discriminator")'
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
