"""What servers make of a PyTorch training loop is what PyTorch makes of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from tests.torch.models import BATCH, alone, batches, check_same, mlp, plain_loop, together  # noqa: E402
from zmqps.errors import ConfigurationError  # noqa: E402

STEPS = 12

OPTIMIZERS = {
    "sgd-plain": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.01),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.02),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6),
    "adamw-amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters(), lr=0.5, rho=0.8),
}


def adamw_of_two(model: Any) -> Any:
    """Return the usual two groups: biases do not decay, and here learn faster."""
    names = dict(model.named_parameters())
    biases = [p for name, p in names.items() if name.endswith("bias")]
    weights = [p for name, p in names.items() if not name.endswith("bias")]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_workers_with_halves_are_one_process_with_whole_batches(name: str) -> None:
    data = batches(STEPS)
    expected = alone(mlp, OPTIMIZERS[name], data)
    for model in together(mlp, OPTIMIZERS[name], data):
        check_same(model, expected)


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"share_gradients": True}], ids=str)
def test_param_groups_and_ways_of_transfer(options: dict[str, Any]) -> None:
    data = batches(STEPS)
    for model in together(mlp, adamw_of_two, data, **options):
        check_same(model, alone(mlp, adamw_of_two, data))


def test_a_context_lets_a_loop_stay_as_it_is() -> None:
    data = batches(STEPS)
    expected = alone(mlp, adamw_of_two, data[: STEPS // 2])
    calls: list[str] = []
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = adamw_of_two(model)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        before = optimizer.step
        with zmqps.torch.training(model, optimizer, worker, mode="sync", timeout=PATIENCE):
            plain_loop(model, optimizer, data[: STEPS // 2])
            assert not optimizer.state  # the moments are on the servers
        check_same(model, expected)
        assert calls == ["before", "after"] * (STEPS // 2)
        assert optimizer.step == before
        with pytest.raises(ConfigurationError, match=r"zmqps\.torch\.Optimizer"):
            with zmqps.torch.training(model, optimizer, worker, share_gradients=True):
                pass


def test_asynchronous_steps_are_those_of_pytorch_where_there_is_one_worker() -> None:
    data = batches(STEPS)
    for options in ({}, {"overlap": True}, {"share_gradients": True}):
        [model] = together(mlp, adamw_of_two, data, workers=1, mode="async", **options)
        check_same(model, alone(mlp, adamw_of_two, data))


def test_layers_that_are_frozen_stay_and_the_steps_go_on() -> None:
    def frozen() -> Any:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def rest(model: Any) -> Any:
        return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)

    data = batches(STEPS)
    for make in (rest, OPTIMIZERS["adam"]):  # left out of the optimizer, or in it without a gradient
        for model in together(frozen, make, data):
            check_same(model, alone(frozen, make, data))
            assert torch.equal(model[0].weight, frozen()[0].weight)


def test_a_layer_that_is_unfrozen_later_is_trained_from_then_on() -> None:
    def frozen() -> Any:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        plain_loop(model, optimizer, data[:5])
        model[0].requires_grad_(True)
        plain_loop(model, optimizer, data[5:])

    data = batches(STEPS)
    for model in together(frozen, OPTIMIZERS["adam"], data, loop):
        check_same(model, alone(frozen, OPTIMIZERS["adam"], data, loop))


class Parted(torch.nn.Module):
    """Workers use two of its parameters in turn: each step has a gradient of one of a worker, and of the other too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.all = torch.nn.Linear(12, 1)
        self.some = torch.nn.Parameter(torch.ones(1, 12))
        self.none = torch.nn.Parameter(torch.ones(12))

    def forward(self, x: Any) -> Any:
        first, rest = x[: len(x) // 2], x[len(x) // 2 :]
        if len(x) == BATCH:  # one process: the batches of both workers
            return torch.cat([self.all(first * self.some), self.all(rest)])
        return self.all(x * self.some if self.uses else x)


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"share_gradients": True}], ids=str)
def test_a_parameter_that_one_worker_does_not_use_has_the_mean_of_all(options: dict[str, Any]) -> None:
    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        if isinstance(optimizer, zmqps.torch.Optimizer):
            model.uses = optimizer.trainer._worker.rank == 0
        plain_loop(model, optimizer, data)

    def make() -> Any:
        return Parted().double()

    data = batches(STEPS)
    for name in ("momentum", "adamw"):
        expected = alone(make, OPTIMIZERS[name], data, loop)
        for model in together(make, OPTIMIZERS[name], data, loop, **options):
            if "share_gradients" in options:  # what nobody uses has a gradient of zeros there, and decays
                model.none = expected.none
            check_same(model, expected)


class Tied(torch.nn.Module):
    """Its last layer is its first one, transposed; a parameter of it is used in every other step only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = torch.nn.Linear(12, 12)
        self.middle = torch.nn.Linear(12, 12)
        self.head = torch.nn.Linear(12, 12)
        self.head.weight = self.embed.weight
        self.sometimes = torch.nn.Parameter(torch.ones(12))
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        x = self.head(torch.tanh(self.middle(self.embed(x))))
        return (x * self.sometimes if self.calls % 2 else x).sum(1, keepdim=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_tied_weights_are_one_and_a_gradient_that_is_none_is_no_update(overlap: bool) -> None:
    data = batches(STEPS)

    def make() -> Any:
        return Tied().double()

    for model in together(make, OPTIMIZERS["adam"], data, overlap=overlap):
        assert model.head.weight is model.embed.weight
        check_same(model, alone(make, OPTIMIZERS["adam"], data))


@pytest.mark.parametrize("options", [{}, {"overlap": True, "accumulate": 3}, {"share_gradients": True}], ids=str)
def test_gradients_are_accumulated_over_backward_passes(options: dict[str, Any]) -> None:
    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        for number, (x, y) in enumerate(data):
            (torch.nn.functional.mse_loss(model(x), y) / 3).backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    data = batches(STEPS)
    for model in together(mlp, OPTIMIZERS["adam"], data, loop, **options):
        check_same(model, alone(mlp, OPTIMIZERS["adam"], data, loop))


class Picture(torch.nn.Module):
    """Convolutions, with statistics of what has come through them."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))


def test_tensors_in_another_order_of_memory() -> None:
    def make() -> Any:
        return Picture(norm=False).double().to(memory_format=torch.channels_last)

    data = [(x.to(memory_format=torch.channels_last), y) for x, y in batches(STEPS, shape=(3, 6, 6))]
    for overlap in (False, True):
        for model in together(make, OPTIMIZERS["adamw"], data, overlap=overlap):
            assert model.first.weight.is_contiguous(memory_format=torch.channels_last)
            check_same(model, alone(make, OPTIMIZERS["adamw"], data))


@pytest.mark.parametrize("overlap", [False, True])
def test_statistics_of_batchnorm_are_averaged_and_an_observer_has_the_model_of_the_workers(overlap: bool) -> None:
    data = batches(STEPS, shape=(3, 6, 6))

    def make() -> Any:
        return Picture(norm=True).double()

    # the same in one process: each half of a batch has statistics of its own, and those that are kept are averaged
    expected = make()
    optimizer = OPTIMIZERS["adamw"](expected)
    for x, y in data:
        optimizer.zero_grad()
        before = copy.deepcopy(expected.norm.state_dict())
        kept = []
        for half in range(2):
            expected.norm.load_state_dict(
                {**expected.norm.state_dict(), **{n: before[n] for n in before if "run" in n}}
            )
            part = slice(half * BATCH // 2, (half + 1) * BATCH // 2)
            (torch.nn.functional.mse_loss(expected(x[part]), y[part]) / 2).backward()
            kept.append(copy.deepcopy(expected.norm.state_dict()))
        optimizer.step()
        with torch.no_grad():
            for name in ("running_mean", "running_var"):
                getattr(expected.norm, name).copy_((kept[0][name] + kept[1][name]) / 2)
    observed: list[Any] = []

    def loop(model: Any, optimizer: Any, mine: Sequence[Any]) -> None:
        plain_loop(model, optimizer, mine)
        optimizer.synchronize()
        observed.append((optimizer.version, optimizer._trainer._worker.address, copy.deepcopy(model.state_dict())))
        if len(observed) == 1:
            other = make()
            assert zmqps.torch.evaluate(optimizer._trainer._worker.address, other, timeout=PATIENCE) == STEPS
            observed.append(other)

    models = together(make, OPTIMIZERS["adamw"], data, loop, overlap=overlap)
    for model in models:
        check_same(model, expected)
        for name in ("running_mean", "running_var"):
            np.testing.assert_allclose(getattr(model.norm, name), getattr(expected.norm, name), rtol=1e-10)
        assert model.norm.num_batches_tracked == STEPS
    other = next(found for found in observed if isinstance(found, Picture))
    x = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    assert torch.equal(other.eval()(x), models[0].eval()(x))


def test_a_schedule_of_pytorch_sets_the_rates_of_the_servers() -> None:
    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        later = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a scheduler warns that the optimizer has not stepped
            for number, (x, y) in enumerate(data):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                (warm_up if number < 4 else later).step()

    data = batches(STEPS)
    expected = alone(mlp, adamw_of_two, data, loop)
    for model in together(mlp, adamw_of_two, data, loop):
        check_same(model, expected)


def test_a_schedule_inside_and_outside_of_the_context() -> None:
    data = batches(STEPS)

    def loop(optimizer: Any, schedule: Any, model: Any) -> None:
        for x, y in data:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            schedule.step()

    expected = mlp()
    theirs = OPTIMIZERS["adam"](expected)
    loop(theirs, torch.optim.lr_scheduler.ExponentialLR(theirs, 0.9), expected)
    for inside in (False, True):
        with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
            model = mlp()
            optimizer = OPTIMIZERS["adam"](model)
            schedule = None if inside else torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            with (
                warnings.catch_warnings(action="error"),
                zmqps.torch.training(model, optimizer, worker, timeout=PATIENCE),
            ):
                loop(optimizer, schedule or torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), model)
            check_same(model, expected)


def scaled_loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    """Train with a `GradScaler`; the gradients of two batches are not finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for number, (x, y) in enumerate(data):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        if number in (2, 7):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if number % 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_value_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()


def test_a_scaler_skips_a_step_with_all_workers() -> None:
    data = batches(STEPS)
    expected = alone(mlp, OPTIMIZERS["adam"], data, scaled_loop)
    for model in together(mlp, OPTIMIZERS["adam"], data, scaled_loop):
        check_same(model, expected)


def test_a_step_is_left_out_for_all_where_the_gradients_of_one_are_not_finite() -> None:
    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        first = optimizer._trainer._worker.rank == 0
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number, (x, y) in enumerate(data):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss * float("inf") if first and number == 3 else loss).backward()
            scaler.step(optimizer)
            scaler.update()

    data = batches(STEPS)
    expected = mlp()
    optimizer = OPTIMIZERS["adam"](expected)
    plain_loop(expected, optimizer, [*data[:3], *data[4:]])
    for model in together(mlp, OPTIMIZERS["adam"], data, loop):
        check_same(model, expected)


def test_parameters_in_bfloat16_have_masters_in_float32_on_the_servers() -> None:
    def make() -> Any:
        return mlp().to(torch.bfloat16)

    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        plain_loop(model, optimizer, [(x.to(torch.bfloat16), y.to(torch.bfloat16)) for x, y in data])

    # tiny steps, each less than half of a bfloat16's last digit: alone they would all be lost
    def tiny(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=2e-4)

    data = batches(200)
    models = together(make, tiny, data, loop)
    start, last = make().state_dict(), alone(make, tiny, data, loop).state_dict()
    moved = sum(int((models[0].state_dict()[name] != start[name]).sum()) for name in start)
    lost = sum(int((last[name] != start[name]).sum()) for name in start)
    assert all(p.dtype == torch.bfloat16 for p in models[0].parameters())
    assert moved > 1.5 * lost
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, models[1].state_dict()[name])


def test_autocast_is_as_with_pytorch() -> None:
    def make() -> Any:
        return mlp().float()

    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        for x, y in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = torch.nn.functional.mse_loss(model(x.float()).float(), y.float())
            loss.backward()
            optimizer.step()

    data = batches(STEPS)
    [model] = together(make, OPTIMIZERS["adam"], data, loop, workers=1)
    check_same(model, alone(make, OPTIMIZERS["adam"], data, loop), 1e-4)


def test_the_norm_of_the_mean_is_limited_as_that_of_a_whole_batch() -> None:
    def clipped(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        for x, y in data:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    data = batches(STEPS)
    expected = alone(mlp, OPTIMIZERS["momentum"], data, clipped)
    for overlap in (False, True):
        for model in together(mlp, OPTIMIZERS["momentum"], data, clip_norm=0.5, overlap=overlap):
            check_same(model, expected, 1e-9)


def test_a_closure_computes_the_loss_and_a_later_worker_begins_with_the_values_of_the_job() -> None:
    (x, y), *_ = batches(1)
    with (
        InProcessCluster(servers=1) as cluster,
        zmqps.connect(cluster.address) as worker,
        zmqps.connect(cluster.address) as later,
    ):
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, OPTIMIZERS["adam"](model), mode="async", timeout=PATIENCE)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure).detach()) for _ in range(5)]
        assert losses[4] < losses[0]
        assert optimizer.version == 5
        other = mlp()
        zmqps.torch.Optimizer(other, later, OPTIMIZERS["adam"](other), mode="async", timeout=PATIENCE)
        check_same(other, model)
        assert isinstance(optimizer, torch.optim.Optimizer)


def test_the_state_is_the_groups_and_moments_stay_with_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    data = batches(3)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, adamw_of_two(model), timeout=PATIENCE)
        plain_loop(model, optimizer, data)
        state = optimizer.state_dict()
        assert [each["lr"] for each in state["param_groups"]] == [0.01, 0.02]
        theirs = adamw_of_two(model)
        theirs.load_state_dict(state)
        plain_loop(model, theirs, data)
        optimizer.load_state_dict(theirs.state_dict())
        assert "--restore" in caplog.text
        with pytest.raises(ConfigurationError, match="has begun"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        with pytest.raises(ConfigurationError, match="is zmqps' already"):
            zmqps.torch.Optimizer(model, worker, optimizer)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "async", "buffers": "average"}, 'mode="sync"'),
        ({"mode": "async", "overlap": True, "clip_norm": 1.0}, "norm is known"),
        ({"buffers": "nobody"}, "buffers"),
        ({"overlap": True, "accumulate": 0}, "accumulate"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], text: str) -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        with pytest.raises(ConfigurationError, match=text):
            zmqps.torch.Optimizer(model, worker, OPTIMIZERS["sgd"](model), timeout=PATIENCE, **options)
        with pytest.raises(ConfigurationError, match="process_group"):
            zmqps.torch.Optimizer(model, None, OPTIMIZERS["sgd"](model))


def test_the_whole_state_is_in_the_format_of_pytorch(tmp_path: Path) -> None:
    data = batches(STEPS)
    expected = alone(mlp, adamw_of_two, data)
    with (
        zmqps.LocalCluster(
            zmqps.Servers(2, kernels="numpy"), workers=1, saving=zmqps.Saving(checkpoint=tmp_path)
        ) as cluster,
        zmqps.connect(cluster.address, timeout=PATIENCE) as worker,
    ):
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, adamw_of_two(model), timeout=PATIENCE)
        plain_loop(model, optimizer, data[: STEPS // 2])
        state = optimizer.full_state_dict()
        theirs = adamw_of_two(model)
        theirs.load_state_dict(state)
    plain_loop(model, theirs, data[STEPS // 2 :])  # PyTorch goes on alone
    check_same(model, expected)


def test_moments_that_an_optimizer_brings_are_not_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    data = batches(2)
    model = mlp()
    theirs = OPTIMIZERS["adam"](model)
    plain_loop(model, theirs, data)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        zmqps.torch.Optimizer(model, worker, theirs, timeout=PATIENCE)
        assert "from_torch" in caplog.text


def test_values_that_are_written_to_the_model_alone_are_not_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    data = batches(4)
    other = {name: value + 1 for name, value in mlp().state_dict().items()}
    for dtype in (torch.float64, torch.bfloat16):
        caplog.clear()
        with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
            model = mlp().to(dtype)
            optimizer = zmqps.torch.Optimizer(model, worker, OPTIMIZERS["sgd"](model), timeout=PATIENCE)
            part = [(x.to(dtype), y.to(dtype)) for x, y in data]
            plain_loop(model, optimizer, part[:2])
            assert caplog.text == ""
            model.load_state_dict(other)
            worker.set(dict(model.named_parameters()), step=True, timeout=PATIENCE)
            worker.pull(out=dict(model.named_parameters()), timeout=PATIENCE)
            plain_loop(model, optimizer, part[2:])
            assert "'0.weight' was written to" in caplog.text
            if dtype == torch.float64:
                expected = mlp()
                expected.load_state_dict(other)
                plain_loop(expected, OPTIMIZERS["sgd"](expected), data[2:])
                check_same(model, expected)


@pytest.mark.parametrize("overlap", [False, True])
def test_sparse_gradients_are_sent_as_dense_ones(overlap: bool) -> None:
    def make() -> Any:
        torch.manual_seed(4)
        return torch.nn.Sequential(torch.nn.Embedding(20, 6, sparse=True), torch.nn.Linear(6, 1)).double()

    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        for x, y in data:
            optimizer.zero_grad()
            words = (x.abs() * 9).long() % 20
            torch.nn.functional.mse_loss(model(words).mean(1), y).backward()
            optimizer.step()

    data = batches(STEPS)
    for model in together(make, OPTIMIZERS["sgd-plain"], data, loop, overlap=overlap):
        check_same(model, alone(make, OPTIMIZERS["sgd-plain"], data, loop))


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [False, True])
def test_a_model_on_a_gpu_is_trained_there(overlap: bool) -> None:
    def make() -> Any:
        return mlp().cuda()

    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        plain_loop(model, optimizer, [(x.cuda(), y.cuda()) for x, y in data])

    data = batches(STEPS)
    expected = alone(make, OPTIMIZERS["adamw"], data, loop).cpu()
    for model in together(make, OPTIMIZERS["adamw"], data, loop, overlap=overlap):
        assert model[0].weight.is_cuda
        check_same(model.cpu(), expected)
