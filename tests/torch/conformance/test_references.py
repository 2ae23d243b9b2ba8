"""What the suite compares with is right, complete, and near enough that an error is seen."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.torch.conformance import optimizers, references  # noqa: E402
from tests.torch.conformance.cases import AXES, Case, covering, possible  # noqa: E402
from tests.torch.conformance.loops import LOOPS, plain  # noqa: E402
from tests.torch.conformance.models import MODELS  # noqa: E402
from tests.torch.conformance.references import Replica, Result, ddp_like, prepared  # noqa: E402
from tests.torch.conformance.run import Suite, difference  # noqa: E402
from tests.torch.conformance.schedules import SCHEDULES, classes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch says of some of what is tried here that it is deprecated

#: What real DDP is asked, too: buffers, parameters without a gradient, clipping, infinities, several backward passes.
WITH_DDP = [
    Case("batch-norm-1d", "adam", workers=2),
    Case("batch-norm-2d", "momentum", loop="evaluate-late", workers=2),
    Case("unused-on-ranks", "adamw", workers=2),
    Case("unused-in-steps", "adam", workers=2),
    Case("embedding", "adagrad", loop="clip-norm-by-hand", workers=2),
    Case("attention", "nesterov", schedule="OneCycleLR", workers=2),
    Case("spectral-norm", "sgd", loop="skip-after", workers=2),
    Case("raw-parameters", "adam", loop="scaler-inf-one", workers=2),
    Case("linear", "rmsprop", loop="accumulate", workers=2),
    Case("qat", "sgd", workers=2),
]


def _as_rank(rank: int, folder: str) -> None:
    """Be one of two processes of DDP, and leave what it has trained in files."""
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for number, case in enumerate(WITH_DDP):
        result = _with_ddp(case, rank)
        torch.save((result.parameters, result.buffers, result.seen), f"{folder}/{number}-{rank}")
    gc.collect()  # a DistributedDataParallel that outlives the group waits for the other process
    torch.distributed.destroy_process_group()


def _with_ddp(case: Case, rank: int) -> Result:
    model = MODELS[case.model]
    module = model.build()
    run = prepared(model, case.schedule, module, optimizers.make(case.rule, case.groups, module), rank, 2)
    run.call = DistributedDataParallel(module, find_unused_parameters=True)
    LOOPS[case.loop].run(run)
    return Result(run)


@pytest.mark.timeout(240)  # two processes import PyTorch and talk through gloo
def test_replicas_are_what_distributed_data_parallel_makes_of_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_as_rank, (str(tmp_path),), nprocs=2)
    for number, case in enumerate(WITH_DDP):
        ours = ddp_like(*case.reference)
        for rank in range(2):
            parameters, buffers, seen = torch.load(tmp_path / f"{number}-{rank}")
            theirs = [ours[rank]]
            mine = Result.__new__(Result)
            mine.parameters, mine.seen = parameters, seen
            mine.buffers = buffers if rank == 0 else theirs[0].buffers
            assert not difference(case, [mine], theirs), case


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.across])
def test_replicas_with_halves_are_one_process_with_whole_batches(name: str) -> None:
    if name == "unused-on-ranks" or name.startswith("compiled"):
        pytest.skip("it differs by rank" if name == "unused-on-ranks" else "it is that of linear")
    rule = "nesterov" if possible({"model": name, "rule": "nesterov"}) else "sgd"
    whole, halves = (ddp_like(name, rule, "two-rates", "StepLR", "plain", ranks) for ranks in (1, 2))
    assert not difference(Case(name), halves, whole * 2)


def test_every_scheduler_of_pytorch_is_in_the_suite() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    for name in classes():  # those that are new and want arguments are to be told in schedules.ARGUMENTS
        SCHEDULES[name](optimizer)
    assert {"OneCycleLR", "CyclicLR", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler", "SWALR"} <= {*SCHEDULES}


#: Modules of torch.nn with parameters that the suite does without, and why.
LEFT_OUT = {
    "AdaptiveLogSoftmaxWithLoss": "it is linear layers", "LinearCrossEntropyLoss": "it is a linear layer",
    "RNNBase": "of which RNN, LSTM and GRU are", "RNNCellBase": "of which the cells are",
    "SyncBatchNorm": "it wants GPUs", "DataParallel": "it wants GPUs", "Container": "it has none of its own",
    "InstanceNorm1d": "as InstanceNorm2d", "InstanceNorm3d": "as InstanceNorm2d",
}  # fmt: skip


def test_every_module_of_pytorch_with_parameters_is_in_the_suite() -> None:
    there = {type(module) for model in MODELS.values() for module in model.build().modules()}
    for name, cls in vars(nn).items():
        if not (inspect.isclass(cls) and issubclass(cls, nn.Module)) or name.startswith("Lazy") or name in LEFT_OUT:
            continue
        bases = [base for base in cls.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
        if any("Parameter(" in inspect.getsource(base) for base in bases):
            assert cls in there, f"torch.nn.{name} is in no model of the suite, nor in LEFT_OUT"


def test_each_possible_pair_of_values_is_in_a_case_and_a_seed_gives_the_same_ones() -> None:
    cases = covering(3)
    assert cases == covering(3) != covering(4)
    found = {(a, getattr(c, a), b, getattr(c, b)) for c in cases for a in AXES for b in AXES}
    for a in AXES:
        for b in AXES:
            for one in AXES[a]:
                for two in AXES[b] if a < b else ():
                    if possible({a: one, b: two}) and {a, b} != {"model", "schedule"}:
                        assert (a, one, b, two) in found, (a, one, b, two)
    assert len(cases) < 1.5 * len(MODELS) * len(SCHEDULES)  # the two longest axes: fewer than one product cannot be


# --- it sees what is wrong -------------------------------------------------------------------------


def _a_percent_more(make: Any) -> Any:
    def changed(*args: Any) -> Any:
        optimizer = make(*args)
        for group in optimizer.param_groups:
            group["lr"] *= 1.01
        return optimizer

    return changed


@pytest.mark.parametrize("rule", optimizers.RULES)
def test_a_rate_that_is_a_percent_off_is_seen(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("linear", rule, workers=2)
    right = ddp_like(*case.reference)
    assert not difference(case, ddp_like(*case.reference), right)
    with monkeypatch.context() as patch:
        patch.setattr(references.optimizers, "make", _a_percent_more(optimizers.make))
        wrong = ddp_like(*case.reference)
    assert "off by" in difference(case, wrong, right)


def test_what_zmqps_has_trained_is_seen_not_to_be_that_of_a_wrong_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    with Suite() as suite:
        case = Case("linear", "adam", workers=2)
        assert suite.run(case).kind == "equal"
        wrong = Case("linear", "adam", schedule="StepLR", workers=2).reference
        assert "off by" in difference(case, suite.train(case), ddp_like(*wrong))
        monkeypatch.setitem(LOOPS, "plain", LOOPS["plain"].__class__(_forgets_a_step, reference=plain))
        assert suite.run(case).kind == "failed"


def _forgets_a_step(run: Any) -> None:
    plain(run.__class__(**{**run.__dict__, "batches": run.batches[:-1]}))


def test_a_case_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.torch.conformance.run.TIMEOUT", 1.0)
    one_stops = LOOPS["plain"].__class__(lambda run: None if run.rank else plain(run), reference=plain)
    monkeypatch.setitem(LOOPS, "plain", one_stops)
    with Suite() as suite:
        found = suite.run(Case("linear", "sgd", "two-equal", workers=2))
        assert found.kind == "failed", found
        monkeypatch.undo()
        assert suite.run(Case()).kind == "equal"  # and the next ones are none the worse


def test_a_buffer_of_a_replica_that_is_its_own_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("batch-norm-1d", workers=2)
    right = ddp_like(*case.reference)
    monkeypatch.setattr(Replica, "broadcast_buffers", lambda self: None)
    found = ddp_like(*case.reference)
    assert "buffer" in difference(case, found, right)
