"""A parameter server over ZeroMQ: workers push gradients, servers apply them, workers pull values."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zmqps import aio, checkpoint, codecs, data, errors, initial, keys, local, optim, pipeline, stale
    from zmqps.checkpoint.find import load
    from zmqps.client.groups import Gradients, Steps
    from zmqps.client.requests import Params
    from zmqps.client.sparse.cache_options import CacheOptions, CacheStatistics, row_cache
    from zmqps.client.sparse.feed import Changes, Feed
    from zmqps.client.sparse.tables import Table, TableOptions, table
    from zmqps.client.sparse.whole import TableStatistics
    from zmqps.core.worker.layout.rollbacks import Rollback
    from zmqps.core.worker.statistics import Statistics
    from zmqps.errors import PSError
    from zmqps.keys.security import Security
    from zmqps.launch.cluster import LocalCluster
    from zmqps.settings.coordinator import Limits, Watching
    from zmqps.settings.saving import Saving
    from zmqps.settings.server import Servers
    from zmqps.worker import Worker, connect, drain_on
    from zmqps.workers import run

__version__ = "0.1.0"

__all__ = [
    "CacheOptions",
    "CacheStatistics",
    "Changes",
    "Feed",
    "Gradients",
    "Limits",
    "LocalCluster",
    "PSError",
    "Params",
    "Rollback",
    "Saving",
    "Security",
    "Servers",
    "Statistics",
    "Steps",
    "Table",
    "TableOptions",
    "TableStatistics",
    "Watching",
    "Worker",
    "__version__",
    "aio",
    "checkpoint",
    "codecs",
    "connect",
    "data",
    "drain_on",
    "errors",
    "initial",
    "keys",
    "load",
    "local",
    "optim",
    "pipeline",
    "row_cache",
    "run",
    "stale",
    "table",
]

#: Public name -> module. Loaded on first use: `zmqps --help` needs no numpy, the core no sockets.
_HOMES = {
    "CacheOptions": "zmqps.client.sparse.cache_options",
    "CacheStatistics": "zmqps.client.sparse.cache_options",
    "Changes": "zmqps.client.sparse.feed",
    "Feed": "zmqps.client.sparse.feed",
    "Gradients": "zmqps.client.groups",
    "Limits": "zmqps.settings.coordinator",
    "LocalCluster": "zmqps.launch.cluster",
    "PSError": "zmqps.errors",
    "Params": "zmqps.client.requests",
    "Rollback": "zmqps.core.worker.layout.rollbacks",
    "Saving": "zmqps.settings.saving",
    "Security": "zmqps.keys.security",
    "Servers": "zmqps.settings.server",
    "Statistics": "zmqps.core.worker.statistics",
    "Steps": "zmqps.client.groups",
    "Table": "zmqps.client.sparse.tables",
    "TableOptions": "zmqps.client.sparse.tables",
    "TableStatistics": "zmqps.client.sparse.whole",
    "Watching": "zmqps.settings.coordinator",
    "Worker": "zmqps.worker",
    "connect": "zmqps.worker",
    "drain_on": "zmqps.worker",
    "load": "zmqps.checkpoint.find",
    "row_cache": "zmqps.client.sparse.cache_options",
    "run": "zmqps.workers",
    "table": "zmqps.client.sparse.tables",
}
#: With which a script begins: from then on its uncaught errors are shown without the frames of zmqps.
_BEGINNINGS = ("LocalCluster", "connect", "run")
_MODULES = (
    "aio",
    "checkpoint",
    "codecs",
    "data",
    "errors",
    "follow",
    "initial",
    "jax",
    "keras",
    "keys",
    "local",
    "optim",
    "pipeline",
    "ray",
    "stale",
    "torch",
)


#: Names of other systems -> what there is.
_ELSEWHERE = {
    "Cluster": "LocalCluster",
    "KVWorker": "connect()",
    "KVStore": "connect()",
    "init": "connect(), and init of the worker that it returns",
    "start": "run(train, workers=n), LocalCluster, or `zmqps up`",
    "TimeoutError": "DeadlineError, which is a TimeoutError",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        try:
            return import_module(f"zmqps.{name}")
        except ModuleNotFoundError as error:  # an extra that is missing: `hasattr` must be False
            raise AttributeError(str(error)) from error
    if name in _HOMES:
        if name in _BEGINNINGS:  # Ctrl-C comes while their modules are imported, too
            import_module("zmqps.logs.uncaught").show_briefly()
        return getattr(import_module(_HOMES[name]), name)
    if name.endswith("Error") and hasattr(errors := import_module("zmqps.errors"), name):
        return getattr(errors, name)  # every exception can be caught as zmqps.…Error
    text = import_module("zmqps.checks").no_attribute("module 'zmqps'", name, _ELSEWHERE)
    raise AttributeError(text, name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
