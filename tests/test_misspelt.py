"""What is misspelt, or called otherwise elsewhere, is answered by the name that is meant, in an error of zmqps."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.tables import for_each
from zmqps import aio, optim
from zmqps.client.sparse.tables import ELSEWHERE as of_table
from zmqps.client.sparse.tables import Table
from zmqps.errors import ConfigurationError, OptimizerError
from zmqps.launch.cluster import ELSEWHERE as of_cluster
from zmqps.worker import ELSEWHERE

PUBLIC: dict[str, Callable[..., Any]] = {
    **{name: getattr(optim, name) for name in optim.registry.BUILTIN if hasattr(optim, name)},
    **{cls.kind: cls for cls in optim.schedules.KINDS.values()},
    "connect": zmqps.connect,
    "aio.connect": aio.connect,
    "LocalCluster": zmqps.LocalCluster,
    "Servers": zmqps.Servers,
    "Saving": zmqps.Saving,
    "Limits": zmqps.Limits,
    "Watching": zmqps.Watching,
    "Security": zmqps.Security,
    "Steps": zmqps.Steps,
    "Gradients": zmqps.Gradients,
    "table": zmqps.table,
    "row_cache": zmqps.row_cache,
}


@pytest.fixture
def worker() -> Iterator[zmqps.Worker]:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as connected:
        yield connected


@for_each("name", PUBLIC)
def test_every_option_is_named_where_one_letter_is_missing(name: str) -> None:
    signature = inspect.signature(PUBLIC[name])
    for option, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or len(option) < 4:
            continue
        with pytest.raises((ConfigurationError, OptimizerError), match=f"did you mean .{option}."):
            PUBLIC[name](**{option[:-1]: 1})


@for_each("wrong, right", [("lr", "learning_rate"), ("betas", "b1"), ("epsilon", "eps")])
def test_names_of_other_libraries_are_known(wrong: str, right: str) -> None:
    with pytest.raises(OptimizerError, match=rf"adam\(\) has no option '{wrong}'; did you mean '{right}'"):
        optim.adam(**{wrong: 0.1})
    if right != "learning_rate":
        return
    with pytest.raises(OptimizerError, match="did you mean 'learning_rate'"):
        optim.group("*.bias", lr=0.1)


def test_what_is_near_to_nothing_is_answered_by_all_there_is() -> None:
    with pytest.raises(OptimizerError, match="its options are learning_rate, weight_decay"):
        optim.sgd(fish=1)  # type: ignore[call-arg]


@for_each(
    "options, meant",
    [
        ({"mode": "Synchronous"}, 'mode="sync"'),
        ({"mode": "bsp"}, 'mode="sync"'),
        ({"mode": "ssp"}, 'mode="bounded", staleness=n'),
        ({"mode": None}, 'mode="async"'),
        ({"mode": 0}, 'mode="sync"'),
        ({"mode": 4}, 'mode="bounded", staleness=4'),
        ({"staleness": 0}, 'mode="sync"'),
        ({"staleness": "async"}, 'mode="async"'),
        ({"staleness": 4}, 'mode="bounded", staleness=4'),
    ],
)
def test_another_name_of_a_mode_is_answered_by_its_own(
    worker: zmqps.Worker, options: dict[str, Any], meant: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        worker.init({"w": np.zeros(1)}, optimizer=optim.sgd(0.1), **options)
    assert f"pass {meant}" in str(caught.value)


@for_each(
    "wrong, right",
    [
        ("consistency", "did you mean 'mode'"), ("sync", "did you mean 'mode'"),
        ("stalenes", "did you mean 'staleness'"), ("replicas_to_aggregate", "pass steps=zmqps.Steps(aggregate=…)"),
        ("on_straggler", "pass steps=zmqps.Steps(on_straggler=…)"),
        ("treatmnt", "pass gradients=zmqps.Gradients(treatment=…)"),
    ],
)  # fmt: skip
def test_an_option_of_a_job_that_has_another_name_elsewhere_is_known(
    worker: zmqps.Worker, wrong: str, right: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(right)):
        worker.init({"w": np.zeros(1)}, optimizer=optim.sgd(0.1), **{wrong: "sync"})


@for_each(
    "call, said",
    [
        (lambda worker: worker.checkpoint("saves"), "checkpoint() takes nothing by position"),
        (lambda worker: worker.log(loss=1.0), "has no option 'loss'; its options are values, step"),
        (lambda worker: zmqps.Worker("tcp://127.0.0.1:1"), "a worker is made by zmqps.connect(address)"),
        (lambda worker: zmqps.connect(worker), "connect(cluster.address)"),
        (lambda worker: zmqps.run(print, num_workers=2), "run() has no option 'num_workers'; did you mean 'workers'?"),
        (lambda worker: zmqps.run(print, args=(1,)), "arguments of train follow it: run(train, 100, workers=4)"),
        (
            lambda worker: zmqps.connect(token="a"),
            "connect() has no option 'token'; pass security=zmqps.Security(token=",
        ),
        (
            lambda worker: zmqps.LocalCluster(2, device="cuda"),
            "LocalCluster() has no option 'device'; pass servers=zmqps.Servers(device=",
        ),
        (
            lambda worker: zmqps.run(print, keys="keys"),
            "run() has no option 'keys'; pass security=zmqps.Security(keys=",
        ),
        (lambda worker: zmqps.LocalCluster(limits=5), "limits comes from zmqps.Limits, as limits=zmqps.Limits("),
        (
            lambda worker: zmqps.LocalCluster(security=zmqps.Security(token="a")),
            "a cluster is started with security=zmqps.Security(keys=DIR)",
        ),
        (lambda worker: zmqps.connect(security="a"), "security comes from zmqps.Security, as security=zmqps.Security("),
        (lambda worker: begun(worker, steps=8), "steps comes from zmqps.Steps, as steps=zmqps.Steps(aggregate=…)"),
        (lambda worker: begun(worker, push_codec="float16"), "did you mean 'fp16'?"),
        (lambda worker: begun(worker, pull_codec="bfloat16"), "did you mean 'bf16'?"),
    ],
)
def test_a_call_as_others_have_it_is_answered_by_ours(
    worker: zmqps.Worker, call: Callable[[zmqps.Worker], object], said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call(worker)
    assert said in str(caught.value)


def begun(worker: zmqps.Worker, **options: Any) -> None:
    worker.init({"w": np.zeros(1)}, optimizer=optim.sgd(0.1), **options)


async def awaited(worker: zmqps.Worker) -> None:
    async with worker:  # type: ignore[attr-defined]
        pass


def test_what_a_worker_or_a_table_is_not_used_for_is_answered_by_what_is(worker: zmqps.Worker) -> None:
    table: Any = Table(worker, "items")
    with pytest.raises(TypeError, match=r"table\.pull\(ids\)"):
        table[[1, 2]]
    with pytest.raises(TypeError, match=r"async with zmqps\.aio\.connect\(address\) as worker"):
        asyncio.run(awaited(worker))


def test_no_call_has_more_than_ten_options() -> None:
    calls = {"connect": zmqps.connect, "aio.connect": aio.connect, "table": zmqps.table, "row_cache": zmqps.row_cache}
    for owner in (zmqps.Worker, zmqps.Table, aio.AsyncWorker, aio.AsyncTable):
        calls |= {f"{owner.__name__}.{n}": getattr(owner, n) for n in dir(owner) if not n.startswith("_")}
    for name, call in calls.items():
        parameters = inspect.signature(call).parameters.values() if callable(call) else ()
        assert sum(p.kind is p.KEYWORD_ONLY for p in parameters) <= 10, name


@for_each(
    "owner, elsewhere",
    [
        (zmqps.Worker, ELSEWHERE),
        (zmqps.LocalCluster, of_cluster),
        (zmqps.Table, of_table),
        (zmqps, zmqps._ELSEWHERE),
    ],
    ids=["worker", "cluster", "table", "zmqps"],
)
def test_an_attribute_that_others_have_is_answered_by_ours(
    worker: zmqps.Worker, owner: Any, elsewhere: dict[str, str]
) -> None:
    instances = {zmqps.Worker: worker, zmqps.LocalCluster: zmqps.LocalCluster(2), zmqps.Table: Table(worker, "items")}
    found = instances.get(owner, zmqps)
    for name, ours in elsewhere.items():
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; use {re.escape(ours)}"):
            getattr(found, name)
        first = re.match(r"(?:zmqps\.)?(\w+)", ours)
        assert first is not None
        assert hasattr(owner, first[1]) or hasattr(zmqps, first[1]), "there is what is advised"
    with pytest.raises(AttributeError, match=r"has no attribute 'fish'$"):
        found.fish  # noqa: B018


def test_what_has_no_future_is_answered_by_what_waits(worker: zmqps.Worker) -> None:
    with pytest.raises(AttributeError, match=r"'barrier_async'; use barrier\(\), or await it by zmqps.aio"):
        worker.barrier_async  # noqa: B018


def test_the_optimizer_may_be_given_by_position(worker: zmqps.Worker) -> None:
    worker.init({"w": np.zeros(1)}, optim.sgd(0.1))
    assert worker.pull().version == 0


def test_no_limit_is_said_that_nobody_comes_near(worker: zmqps.Worker) -> None:
    with (
        InProcessCluster() as cluster,
        zmqps.connect(cluster.address) as worker,
        pytest.raises(ConfigurationError) as caught,
    ):
        worker.init({"w": np.zeros(1)}, optimizer=optim.sgd(0.1), workers="3")
    assert "e+18" not in str(caught.value)


def test_a_word_of_a_few_is_answered_by_the_nearest(worker: zmqps.Worker) -> None:
    with (
        InProcessCluster() as cluster,
        zmqps.connect(cluster.address) as worker,
        pytest.raises(ConfigurationError) as caught,
    ):
        worker.init({"w": np.zeros(1)}, optimizer=optim.sgd(0.1), gradients=zmqps.Gradients(nonfinite="alow"))
    assert "nonfinite must be one of reject, allow, not 'alow'; did you mean 'allow'?" in str(caught.value)


@for_each("name", [n for n in dir(zmqps.Worker) if not n.startswith("_")])
def test_a_call_with_too_little_names_the_class_that_scripts_know(name: str) -> None:
    for method in filter(callable, [getattr(zmqps.Worker, name)]):
        assert method.__qualname__ == f"Worker.{name}"
        needed = [
            p for p in inspect.signature(method).parameters.values()
            if p.kind is p.KEYWORD_ONLY and p.default is p.empty
        ]  # fmt: skip
        assert not needed, "what has to be said is said by place"
