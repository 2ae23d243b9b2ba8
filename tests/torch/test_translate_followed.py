"""What the groups of an optimizer hold is what the servers compute with, at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.modes import MODES  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from tests.torch.models import alone, batches, check_same, mlp, together  # noqa: E402
from zmqps.errors import OptimizerError  # noqa: E402

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "a rate for each group": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda n: 0.9**n, lambda n: 0.5**n]),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.05),
}


def halves(model: Any) -> list[dict[str, Any]]:
    """Return two groups that begin alike."""
    parameters = list(model.parameters())
    return [{"params": parameters[:3]}, {"params": parameters[3:]}]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_schedules_move_everything_that_they_move(schedule: str, optimizer: str) -> None:
    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        moves = SCHEDULES[schedule](optimizer)
        for x, y in data:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            moves.step()

    def make(model: Any) -> Any:
        return OPTIMIZERS[optimizer](halves(model))

    data = batches(18)
    expected = alone(mlp, make, data, loop)
    for model in together(mlp, make, data, loop):
        check_same(model, expected)


def test_numbers_that_a_script_sets_hold_from_its_next_step_on() -> None:
    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        for number, (x, y) in enumerate(data):
            for at, each in enumerate(optimizer.param_groups):
                each["weight_decay"] = 0.01 * number * at
                each["betas"] = (0.5 + 0.02 * number, 0.9)
            optimizer.param_groups[0]["eps"] = 10.0 ** -(number + 2)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    data = batches(12)
    for optimizer in (torch.optim.Adam, torch.optim.AdamW):

        def make(model: Any, optimizer: Any = optimizer) -> Any:
            return optimizer(halves(model), lr=0.05)

        expected = alone(mlp, make, data, loop)
        for overlap in (False, True):
            for model in together(mlp, make, data, loop, overlap=overlap):
                check_same(model, expected)


@pytest.mark.parametrize(
    ("option", "value"), [("nesterov", True), ("maximize", True), ("momentum", 0.9)], ids=["a flag", "off", "momentum"]
)
def test_what_the_servers_rule_lacks_is_refused_by_name(option: str, value: Any) -> None:
    [(x, y)] = batches(1)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = zmqps.torch.Optimizer(model, worker, sgd, timeout=PATIENCE)
        optimizer.param_groups[0][option] = value
        torch.nn.functional.mse_loss(model(x), y).backward()
        with pytest.raises(OptimizerError, match=option):
            optimizer.step()


class Falling(torch.nn.Module):
    """Its one number falls by the learning rate in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def fall(self, optimizer: Any) -> float:
        """Return by how much it falls in a step."""
        before = self.number.item()
        optimizer.zero_grad()
        self.number.sum().backward()
        optimizer.step()
        return round(before - self.number.item(), 9)


def served(model: Any, worker: Any, **options: Any) -> Any:
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return zmqps.torch.Optimizer(model, worker, sgd, timeout=PATIENCE, **options)


def test_a_worker_that_becomes_the_chief_says_what_its_groups_hold() -> None:
    with (
        InProcessCluster(servers=1) as cluster,
        zmqps.connect(cluster.address, name="first") as first,
        zmqps.connect(cluster.address, name="second") as second,
    ):
        one, other = Falling(), Falling()
        optimizer = served(one, first, mode="async")
        theirs = served(other, second, mode="async")
        assert first.is_chief
        optimizer.param_groups[0]["lr"] = 0.01
        assert one.fall(optimizer) == 0.01
        first.finish()
        first.close()
        while not second.is_chief:  # which the coordinator tells with its next answer
            other.fall(theirs)
        other.fall(theirs)  # which sees the steps of the first as well
        assert theirs.param_groups[0]["lr"] == 1.0
        assert other.fall(theirs) == 1.0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_restored_job_is_trained_with_what_the_groups_hold(mode: str, tmp_path: Path) -> None:
    for life, rate in enumerate((0.01, 1.0)):
        saving = zmqps.Saving(checkpoint=tmp_path, restore=tmp_path if life else None)
        with (
            zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), workers=1, saving=saving) as cluster,
            zmqps.connect(cluster.address, timeout=PATIENCE) as worker,
        ):
            model = Falling()
            optimizer = served(model, worker, **MODES[mode])
            assert model.number.item() == -0.01 * life
            optimizer.param_groups[0]["lr"] = rate
            assert model.fall(optimizer) == rate
            worker.checkpoint(timeout=PATIENCE)
