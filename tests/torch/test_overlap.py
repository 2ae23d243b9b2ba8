"""Gradients that leave early, and values that come late."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
import zmqps.torch.overlap  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from tests.torch.models import alone, batches, check_same, mlp, plain_loop  # noqa: E402
from zmqps.errors import ConfigurationError  # noqa: E402


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_gradients_leave_while_backward_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmqps.torch.overlap, "BUCKET_NBYTES", 1)
    data = batches(6)
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        model, pushed = mlp(), list[list[str]]()
        optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), overlap=True, timeout=PATIENCE)
        original = worker.push_async

        def push_async(grads: Any, **options: Any) -> Any:
            pushed.append(sorted(grads))
            return original(grads, **options)

        monkeypatch.setattr(worker, "push_async", push_async)
        plain_loop(model, optimizer, data)
        assert len(pushed) == 7 * 6  # six tensors, and the end of the step
        assert pushed[6] == []
        assert {*pushed[0]} <= {"4.weight", "4.bias"}  # the last layer is first
        state = model.state_dict()  # waits for the values
        check_same(model, alone(mlp, sgd, data))
        assert torch.equal(state["0.weight"], model[0].weight)


def test_a_gradient_that_changes_after_it_was_pushed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmqps.torch.overlap, "BUCKET_NBYTES", 1)
    [(x, y)] = batches(1)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), overlap=True, timeout=PATIENCE)
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        with pytest.raises(ConfigurationError, match=r"has changed after overlap=True.*clip_norm"):
            optimizer.step()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        model[2].weight.grad.data.clamp_(-1e-3, 1e-3)  # which PyTorch does not count
        with pytest.raises(ConfigurationError, match=r"has changed after overlap=True.*clip_norm"):
            optimizer.step()
        optimizer.zero_grad()
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
        with pytest.raises(ConfigurationError, match="GradScaler"):
            scaler.step(optimizer)


def test_hooks_are_gone_when_the_context_is() -> None:
    [(x, y)] = batches(1)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = sgd(model)
        with zmqps.torch.training(model, optimizer, worker, overlap=True, timeout=PATIENCE):
            plain_loop(model, optimizer, [(x, y)])
        worker.close()
        plain_loop(model, optimizer, [(x, y)])  # PyTorch's own step again


def test_a_gradient_of_a_backward_pass_that_has_failed_is_not_taken_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmqps.torch.overlap, "BUCKET_NBYTES", 1)
    first, second = batches(2)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), overlap=True, timeout=PATIENCE)

        def fail(_: Any) -> None:
            raise ArithmeticError

        hook = model[0].weight.register_hook(fail)
        with pytest.raises(ArithmeticError):
            torch.nn.functional.mse_loss(model(first[0]), first[1]).backward()
        hook.remove()
        with pytest.raises(ConfigurationError, match="this step is skipped"):
            plain_loop(model, optimizer, [second])
        optimizer.synchronize()
        check_same(model, mlp())
        plain_loop(model, optimizer, [second])
        optimizer.synchronize()
        check_same(model, alone(mlp, sgd, [second]))
        assert optimizer.version == 2
