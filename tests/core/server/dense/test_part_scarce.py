"""The tests of shards and servers once more, with memory that fails at each request for it before it is had."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import ModuleType
from typing import Any

import pytest

from tests.core.server import test_machine, test_machine_jobs, test_machine_steps, test_parked, test_tenant
from tests.core.server.dense import test_aggregate, test_buffers, test_part, test_part_treated, test_steps
from tests.core.server.scarcity import Scarcity, state_of
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard

#: Other tests let single requests fail: test_part_memory.py.
pytestmark = pytest.mark.repeats

#: What fails in the middle of these leaves what is done, for those who ask again.
IN_PART = ("commit", "load")
#: What a server answers with values.
ANSWERS = ("_pulled", "_values")


@pytest.fixture(scope="module", autouse=True)
def failures(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Let each method of every shard fail at its first request for memory, then at its second, …, until it works."""
    failed: list[str] = []
    scarcity = Scarcity()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty", "values", "decode", "send"):
            patch.setattr(HostMemory, name, scarce(getattr(HostMemory, name), scarcity))
        patch.setattr(HostMemory, "decode", tried_again("decode", HostMemory.decode, scarcity, failed))
        for name in ("push", "collect", "pull", "load", "commit"):
            of = Shard if name == "commit" else DensePart
            patch.setattr(of, name, tried_again(name, getattr(of, name), scarcity, failed))
        for name in ANSWERS:
            patch.setattr(ServerKernel, name, tried_again(name, getattr(ServerKernel, name), scarcity, failed))
        yield failed
    run = {getattr(item, "originalname", "") for item in request.session.items}
    if run >= {name for name in globals() if name.startswith("test_")}:  # and not a selection of them
        assert {"push", "collect", "commit", "pull", "decode", *ANSWERS} <= set(failed)


def scarce(method: Any, scarcity: Scarcity) -> Any:
    def call(memory: HostMemory, *arguments: Any, **options: Any) -> Any:
        scarcity.tick()
        return method(memory, *arguments, **options)

    return call


def tried_again(name: str, method: Any, scarcity: Scarcity, failed: list[str]) -> Any:
    def call(owner: Any, *arguments: Any, **options: Any) -> Any:
        if scarcity.left is not None:  # what it is a part of is tried again
            return method(owner, *arguments, **options)
        memory = isinstance(owner, HostMemory)  # which keeps nothing
        shard = owner if isinstance(owner, Shard | DensePart) else None if memory else arguments[2]
        counts = {} if memory or shard is owner else arguments[1].counts
        before, counted = state_of(shard) if shard is not None else {}, dict(counts)
        for requests in count():
            scarcity.fail_after(requests)
            try:
                return method(owner, *arguments, **options)
            except MemoryError:
                failed.append(name)
                assert name in IN_PART or shard is None or (state_of(shard), counts) == (before, counted)
            finally:
                scarcity.fail_after(None)
        raise AssertionError("not reached")

    return call


def named(module: ModuleType) -> dict[str, Any]:
    """Return a module's tests, under names that say where they are from."""
    prefix = f"{module.__name__.rpartition('.')[2]}_"
    return {prefix + name: test for name, test in vars(module).items() if name.startswith("test_") and callable(test)}


for module in (
    test_part, test_steps, test_part_treated, test_machine, test_machine_steps, test_machine_jobs,
    test_aggregate, test_buffers, test_parked, test_tenant,
):  # fmt: skip
    globals().update(named(module))
