"""The tests of shards and servers once more, with memory that fails at each request for it before it is had."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import ModuleType
from typing import Any

import pytest

from tests.core.server import test_machine, test_machine_steps, test_shard, test_shard_steps, test_shard_treated
from tests.core.server.scarcity import Scarcity, state_of
from zmqps.core.server.memory import HostMemory
from zmqps.core.server.shard import Shard

#: What fails in the middle of these leaves what is done, for those who ask again.
IN_PART = ("commit", "load")


@pytest.fixture(scope="module", autouse=True)
def failures() -> Iterator[list[str]]:
    """Let each method of every shard fail at its first request for memory, then at its second, …, until it works."""
    failed: list[str] = []
    scarcity = Scarcity()
    with pytest.MonkeyPatch.context() as patch:
        empty = HostMemory.empty

        def scarce(self: HostMemory, *arguments: Any) -> Any:
            scarcity.tick()
            return empty(self, *arguments)

        patch.setattr(HostMemory, "empty", scarce)
        for name in ("push", "collect", "pull", *IN_PART):
            patch.setattr(Shard, name, tried_again(name, getattr(Shard, name), scarcity, failed))
        yield failed
    assert {"push", "collect", "commit", "pull"} <= set(failed)


def tried_again(name: str, method: Any, scarcity: Scarcity, failed: list[str]) -> Any:
    def call(shard: Shard, *arguments: Any, **options: Any) -> Any:
        before = state_of(shard)
        for requests in count():
            scarcity.fail_after(requests)
            try:
                return method(shard, *arguments, **options)
            except MemoryError:
                failed.append(name)
                assert name in IN_PART or state_of(shard) == before
            finally:
                scarcity.fail_after(None)
        raise AssertionError("not reached")

    return call


def named(module: ModuleType) -> dict[str, Any]:
    """Return a module's tests, under names that say where they are from."""
    prefix = f"{module.__name__.rpartition('.')[2]}_"
    return {prefix + name: test for name, test in vars(module).items() if name.startswith("test_") and callable(test)}


for module in (test_shard, test_shard_steps, test_shard_treated, test_machine, test_machine_steps):
    globals().update(named(module))
