"""Writes to parameters between two steps are noticed, however they are made."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
import zmqps.torch.watch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from tests.torch.models import alone, batches, check_same, mlp, plain_loop, together  # noqa: E402
from zmqps.torch.watch import Watch  # noqa: E402


def clamp(model: Any) -> None:
    """As WGAN's critic is clipped."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


def from_vector(model: Any) -> None:
    vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(vector + 1, model.parameters())


def another_place(model: Any) -> None:
    model[2].weight.data = model[2].weight.data + 1


def in_place(model: Any) -> None:
    with torch.no_grad():
        model[4].bias.add_(1)


WRITES: dict[str, Callable[[Any], None]] = {
    "data, in place": clamp,
    "a vector": from_vector,
    "data, replaced": another_place,
    "in place": in_place,
    "a state": lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
}


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"share_gradients": True}], ids=str)
def test_each_way_of_writing_is_warned_of_once(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    data = batches(6)
    with InProcessCluster(servers=1) as cluster:
        for number, (name, write) in enumerate(WRITES.items()):
            caplog.clear()
            with zmqps.connect(cluster.address, job=f"job-{number}") as worker:
                model = mlp()
                sgd = torch.optim.SGD(model.parameters(), lr=0.1)
                optimizer = zmqps.torch.Optimizer(model, worker, sgd, timeout=PATIENCE, **options)
                plain_loop(model, optimizer, data[:2])
                (
                    copy.deepcopy(model),
                    model.state_dict(),
                    torch.optim.swa_utils.AveragedModel(model),
                )  # all of this reads
                plain_loop(model, optimizer, data[2:4])
                assert "was written to" not in caplog.text, name
                for _ in range(2):
                    write(model)
                    plain_loop(model, optimizer, data[4:5])
                optimizer.synchronize()
                assert caplog.text.count("was written to since the last step") == 1, name
                worker.finish()


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"mode": "async", "workers": 1}], ids=str)
def test_what_a_script_writes_is_the_jobs_when_it_says_so(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def loop(model: Any, optimizer: Any, data: Any) -> None:
        for each in data:
            plain_loop(model, optimizer, [each])
            for parameter in model.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            if isinstance(optimizer, zmqps.torch.Optimizer):
                optimizer.set_values()

    def adam(model: Any) -> Any:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    expected = alone(mlp, adam, batches(6), loop)
    for model in together(mlp, adam, batches(6), loop, **options):
        check_same(model, expected)
    assert "was written to" not in caplog.text


def test_it_is_warned_again_after_steps_without_a_write(caplog: pytest.LogCaptureFixture) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    watch = Watch([("w", parameter)])
    for writes in (True, True, False, False, True):
        watch.note_all()
        parameter.data.add_(writes)
        watch.check()
    assert caplog.text.count("was written to") == 2


def test_what_is_compared_of_a_large_parameter_moves_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zmqps.torch.watch, "SAMPLE_NBYTES", 64)
    parameter = torch.nn.Parameter(torch.zeros(8, 16))  # 512 bytes
    watch = Watch([("w", parameter)])
    with caplog.at_level(logging.WARNING):
        steps = 0
        while not caplog.text:
            watch.note_all()
            parameter.data[5, 3] += 1.0
            watch.check()
            steps += 1
    assert steps == 1 + (5 * 64 + 3 * 4) // 64


def test_a_step_that_fails_between_two_looks_is_no_write(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch([("w", torch.nn.Parameter(torch.randn(64, 64)))])
    watch.note_all()
    for _ in range(3):
        watch.check()
    assert not caplog.text


def test_many_parameters_are_compared_in_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zmqps.torch.watch, "MOST_SAMPLED", 4)
    trained = [(str(number), torch.nn.Parameter(torch.zeros(2))) for number in range(10)]
    watch = Watch(trained)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not caplog.text
            watch.note_all()
            trained[7][1].data.add_(1)
            watch.check()
    assert "'7' was written to" in caplog.text


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.zeros(4, 4, dtype=torch.bfloat16),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(()),
        torch.zeros(4, 4).t(),
    ],
    ids=str,
)
def test_parameters_of_any_layout_and_dtype(tensor: Any, caplog: pytest.LogCaptureFixture) -> None:
    parameter = torch.nn.Parameter(tensor)
    watch = Watch([("w", parameter)])
    watch.note_all()
    watch.check()
    assert not caplog.text
    watch.note_all()
    parameter.data.add_(1)
    watch.check()
    assert "'w' was written to" in caplog.text


def test_an_empty_or_strided_parameter_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch([("a", torch.nn.Parameter(torch.zeros(0))), ("b", torch.nn.Parameter(torch.zeros(4, 4)[:, ::2]))])
    watch.note_all()
    watch.check()
    assert not caplog.text
