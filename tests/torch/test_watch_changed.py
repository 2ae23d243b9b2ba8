"""What changes gradients before the mean of the workers is known is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch.models import batches, mlp, plain_loop, together  # noqa: E402


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def accumulated(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    for x, y in data:
        optimizer.zero_grad(set_to_none=False)
        for _ in range(2):
            torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def clipped(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def scaled(model: Any, optimizer: Any, data: Sequence[Any], *, clip: bool = False) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for number, (x, y) in enumerate(data):
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
        if number % 2:
            scaler.unscale_(optimizer)
            if clip:
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def scaled_and_clipped(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    scaled(model, optimizer, data, clip=True)


def clamped_data(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-0.01, 0.01)
        optimizer.step()


def replaced(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        model[2].weight.grad = model[2].weight.grad.clamp(-0.01, 0.01)
        optimizer.step()


def left_out(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
    for x, y in data:
        for _ in range(2):  # the first batch of each pair does not count
            optimizer.zero_grad(set_to_none=False)
            torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "workers", "warned"),
    [
        (plain_loop, 2, False), (accumulated, 2, False), (scaled, 2, False), (clipped, 1, False), (clipped, 2, True),
        (scaled_and_clipped, 2, True), (clamped_data, 2, True), (replaced, 2, True), (left_out, 2, False),
    ],
)  # fmt: skip
def test_clipping_on_one_of_several_workers_is_warned_of(
    loop: Any, workers: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    together(mlp, sgd, batches(4), loop, workers=workers)
    assert caplog.text.count("pass clip_norm= or clip_value=") == (workers if warned else 0)
    together(mlp, sgd, batches(4), loop, workers=workers, mode="async")
    assert caplog.text.count("pass clip_norm= or clip_value=") == (workers if warned else 0)
