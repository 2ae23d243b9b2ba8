"""JAX: pytrees instead of dicts of arrays, and an optimizer that is an optax ``GradientTransformation``.

Needs the extra ``jax``. Parameters are called as their paths say: ``layers/0/w`` for ``params["layers"][0]["w"]``.
All of this talks to servers, so it is called outside ``jax.jit``; what computes gradients may be inside.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from zmqps.extras import lacks_extra

try:
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as error:
    raise lacks_extra("jax", error) from error

from zmqps.client.frameworks import claimed, over_workers, register
from zmqps.errors import ConfigurationError, ShapeError
from zmqps.optim import OptimizerSpec
from zmqps.worker import Worker

log = logging.getLogger("zmqps")

register()

#: The name of a parameter that is the whole tree.
ALONE = "value"


class State(NamedTuple):
    """The state of `optimizer`: that of the optimizer itself is on the servers."""

    version: int


def name_of(path: Any) -> str:
    """Return the name of a leaf on the servers, such as ``layers/0/w``.

    Parameters
    ----------
    path : tuple
        As ``jax.tree_util.tree_flatten_with_path`` gives it: keys of dicts, numbers in lists, names of fields.
    """
    return jax.tree_util.keystr(path, simple=True, separator="/") or ALONE


def named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by name; ``None`` in it is not a leaf, as everywhere in JAX.

    Parameters
    ----------
    tree : pytree of array
        Dicts, lists, tuples, named tuples, registered dataclasses, parameters of flax.

    Raises
    ------
    ConfigurationError
        Two leaves have the same name, or this is called inside ``jax.jit``.
    """
    found: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, jax.core.Tracer):
            raise ConfigurationError(
                "servers cannot be reached inside jax.jit or jax.grad: let it return gradients, and push them outside"
            )
        if (name := name_of(path)) in found:
            raise ConfigurationError(f"two leaves are named {name!r}: keys of a dict must not contain '/' and differ")
        found[name] = leaf
    return found


def init(worker: Worker, params: Any, *, optimizer: OptimizerSpec, **options: Any) -> Any:
    """Start the job with a pytree of initial values, or join the one that another worker has started.

    Parameters
    ----------
    worker : Worker
    params : pytree of array
        Floating point; in bfloat16 and float16 servers keep float32.
    optimizer : OptimizerSpec
        From `zmqps.optim`.
    **options
        As for `zmqps.Worker.init`: ``mode="async"``, for instance. In the synchronous mode, the default, the mean is
        over all workers unless you pass ``steps=zmqps.Steps(mean="pushed")``.

    Returns
    -------
    pytree of jax.Array
        The values to train from: those of the job, which a worker that comes later did not choose.

    Raises
    ------
    PSError
        As `zmqps.Worker.init`.
    """
    worker.init(_arrays(params), optimizer=optimizer, **over_workers(options))
    return pull(worker, params, timeout=options.get("timeout"))


def pull(worker: Worker, like: Any, **options: Any) -> Any:
    """Return the job's values as a pytree.

    Parameters
    ----------
    worker : Worker
        An observer, too.
    like : pytree of array
        Of the same structure; its leaves say which dtypes the values will have.
    **options
        As for `zmqps.Worker.pull`.

    Returns
    -------
    pytree of jax.Array
        New arrays, which nothing else writes to.
    """
    return _tree(worker.pull(named(like), **options), like)


def push_pull(worker: Worker, grads: Any, like: Any = None, **options: Any) -> Any:
    """Send a pytree of gradients, and return the values after them, as `zmqps.Worker.push_pull` does.

    Parameters
    ----------
    worker : Worker
    grads : pytree of array
        Of the structure of the parameters; gradients of integers (``float0``) are left out.
    like : pytree of array, optional
        Whose dtypes the values will have; by default those of the gradients.
    **options
        As for `zmqps.Worker.push_pull`.

    Returns
    -------
    pytree of jax.Array
        The values, in the structure of the gradients.
    """
    return _tree(worker.push_pull(_arrays(grads), **options), grads if like is None else like)


def optimizer(worker: Worker, spec: OptimizerSpec, **options: Any) -> optax.GradientTransformation:
    """Return an optax optimizer whose updates the servers compute.

    Its ``init(params)`` starts or joins the job. Its ``update(grads, state, params)`` pushes the gradients, waits as
    the mode demands, and returns what takes ``params`` to the values after them: new minus old, in the parameters'
    dtypes. ``optax.apply_updates`` adds that up, so the result may differ from the servers' values in the last bit; it
    does not add up, for the next update is counted from there. `push_pull` returns the values themselves.

    Parameters
    ----------
    worker : Worker
    spec : OptimizerSpec
        From `zmqps.optim`; optax's own chain cannot be sent.
    **options
        As for `zmqps.Worker.init`.

    Raises
    ------
    ConfigurationError
        By its ``init``: another such optimizer trains the job of this worker.

    Examples
    --------
    >>> worker = zmqps.connect()  # doctest: +SKIP
    >>> tx = zmqps.jax.optimizer(worker, zmqps.optim.adam(1e-3))  # doctest: +SKIP
    >>> state = tx.init(params)  # doctest: +SKIP
    >>> updates, state = tx.update(grads, state, params)  # doctest: +SKIP
    >>> params = optax.apply_updates(params, updates)  # doctest: +SKIP
    """

    def begin(params: Any) -> State:
        with claimed(worker, begin):
            values = init(worker, params, optimizer=spec, **options)
        same = jax.tree.map(lambda ours, theirs: bool(jnp.array_equal(ours, theirs)), params, values)
        if not all(jax.tree.leaves(same)):
            log.warning(
                "the job has other values than these params: begin with params = zmqps.jax.pull(worker, params), or "
                "the first gradients are of values that are not trained"
            )
        return State(0)

    def update(grads: Any, state: State, params: Any = None) -> tuple[Any, State]:
        if params is None:
            raise ConfigurationError("say which values the gradients are of: update(grads, state, params)")
        ours = named(params)
        values = worker.push_pull(_arrays(grads))
        if missing := [name for name in values if name not in ours]:
            raise ConfigurationError(f"there is a gradient of {missing[0]!r}, but no such parameter")
        updates = {name: value - np.asarray(ours[name], value.dtype) for name, value in values.items()}
        return _tree(updates, grads), State(values.version)

    return optax.GradientTransformation(begin, update)


def _arrays(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by name, as arrays that can be sent."""
    found = {name: np.asarray(leaf) for name, leaf in named(tree).items()}
    return {name: array for name, array in found.items() if array.dtype != jax.dtypes.float0}


def _tree(values: Any, like: Any) -> Any:
    """Return arrays by name as a tree of the structure and dtypes of another one."""

    def leaf(path: Any, old: Any) -> Any:
        if (name := name_of(path)) not in values:
            return old  # which is not trained
        new, shape = values[name], np.shape(old)
        if new.shape != shape:
            raise ShapeError(name=name, got=str(shape), expected=str(new.shape))
        return jnp.asarray(new, getattr(old, "dtype", None))

    return jax.tree_util.tree_map_with_path(leaf, like)
