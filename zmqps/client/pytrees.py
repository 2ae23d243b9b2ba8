"""Makes the result of a pull a pytree of JAX, if a program uses JAX."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from zmqps.client.requests import Params

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
