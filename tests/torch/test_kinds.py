"""What a model, an optimizer and its copies may be: one model a job, observers of quantization, copies and files."""

from __future__ import annotations

import copy
import inspect
import io
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
import zmqps.torch.overlap  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from tests.torch.models import alone, batches, check_same, mlp, plain_loop, together  # noqa: E402
from zmqps.errors import ConfigurationError, OptimizerError  # noqa: E402
from zmqps.torch.optimizer import OF_INIT  # noqa: E402


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_a_second_optimizer_on_a_job_names_the_way_to_another_job(caplog: pytest.LogCaptureFixture) -> None:
    data = batches(4)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        first, second = mlp(), mlp()
        optimizer = zmqps.torch.Optimizer(first, worker, sgd(first), timeout=PATIENCE)
        with pytest.raises(ConfigurationError, match=r"zmqps\.connect\(job="):
            zmqps.torch.Optimizer(second, worker, sgd(second), timeout=PATIENCE)
        again = zmqps.torch.Optimizer(first, worker, sgd(first), timeout=PATIENCE)  # Lightning does so for each fit
        plain_loop(first, again, data)
        check_same(first, alone(mlp, sgd, data))
        optimizer.close()
        again.close()
        assert "continues with its values and moments" not in caplog.text
        zmqps.torch.Optimizer(second, worker, sgd(second), timeout=PATIENCE)
        check_same(second, first)
        assert "continues with its values and moments" in caplog.text


def test_an_optimizer_that_is_made_again_for_a_model_takes_the_place_of_the_first() -> None:
    data = batches(4)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        for part in (data[:2], data[2:]):
            optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), overlap=True, timeout=PATIENCE)
            plain_loop(model, optimizer, part)
        check_same(model, alone(mlp, sgd, data))
        assert len(model[0].weight._post_accumulate_grad_hooks) == 1
        assert len(model[0]._forward_pre_hooks) == 1
        optimizer.close()
        assert not model[0].weight._post_accumulate_grad_hooks
        assert not model[0]._forward_pre_hooks


def test_what_would_be_ignored_in_silence_is_refused() -> None:
    (x, y), *_ = data = batches(2)
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model, calls = mlp(), list[str]()
        theirs = sgd(model)
        theirs.register_step_pre_hook(lambda *_: calls.append("before"))
        theirs.register_step_post_hook(lambda *_: calls.append("after"))
        optimizer = zmqps.torch.Optimizer(model, worker, theirs, timeout=PATIENCE)
        plain_loop(model, optimizer, data[:1])
        assert calls == ["before", "after"]
        with pytest.raises(ConfigurationError, match="call step"):
            theirs.step()
        with pytest.raises(ConfigurationError, match="moments are on the servers"):
            optimizer.state.clear()
        with pytest.raises(ConfigurationError, match="accumulate"):
            zmqps.torch.Optimizer(model, worker, sgd(model), accumulate=2)
        optimizer.load_state_dict(optimizer.state_dict())
        schedule = torch.optim.lr_scheduler.ConstantLR(theirs, 0.5)  # which goes on to move the groups
        assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0] == 0.05
        optimizer.param_groups[0]["params"].pop()
        torch.nn.functional.mse_loss(model(x), y).backward()
        with pytest.raises(OptimizerError, match="replaced, or taken out"):
            optimizer.step()
        optimizer.close()
        theirs.step()


def test_a_state_that_is_loaded_in_a_context_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        other, optimizer = sgd(model), sgd(model)
        plain_loop(model, other, batches(1))
        with zmqps.torch.training(model, optimizer, worker, timeout=PATIENCE):
            optimizer.load_state_dict(other.state_dict())
            assert "the moments in this state are not loaded" in caplog.text
            assert not optimizer.state
        optimizer.load_state_dict(other.state_dict())
        assert optimizer.state


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of the compiler's own copies
@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_is_compiled_as_a_whole(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmqps.torch.overlap, "BUCKET_NBYTES", 1)

    def loop(model: Any, optimizer: Any, data: Any) -> None:
        torch._dynamo.reset()
        step = torch.compile(lambda x, y: plain_loop(model, optimizer, [(x, y)]), backend="eager")
        for x, y in data:
            step(x, y)

    data = batches(4)
    [model] = together(mlp, sgd, data, loop, workers=1, overlap=overlap)
    check_same(model, alone(mlp, sgd, data))


def test_what_cannot_begin_leaves_nothing_behind() -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        with pytest.raises(ConfigurationError, match="deterministic"):
            zmqps.torch.Optimizer(
                model, worker, sgd(model), steps=zmqps.Steps(deterministic=True, aggregate=1), timeout=PATIENCE
            )
        assert not model[0].weight._post_accumulate_grad_hooks
        other = mlp()
        zmqps.torch.Optimizer(other, worker, sgd(other), timeout=PATIENCE)


def test_every_option_is_in_the_signature() -> None:
    init = inspect.signature(zmqps.Worker.init).parameters
    ours = inspect.signature(zmqps.torch.Optimizer).parameters
    made_here = {"self", "params", "optimizer"}
    assert set(init) - made_here <= {*ours, *OF_INIT}
    assert sum(option.kind is option.KEYWORD_ONLY for option in ours.values()) <= 10
    documented = zmqps.torch.Optimizer.__doc__ or ""
    assert not [name for name in (*ours, *OF_INIT) if name not in documented]
    with pytest.raises(ConfigurationError, match=r"Optimizer\(\) has no option 'no_such_option'"):
        zmqps.torch.Optimizer(mlp(), None, sgd(mlp()), no_such_option=1)
    with pytest.raises(ConfigurationError, match=r"pass steps=zmqps\.Steps\(aggregate=…\)"):
        zmqps.torch.Optimizer(mlp(), None, sgd(mlp()), aggregate=3)


def test_a_copy_of_an_optimizer_says_that_it_is_one() -> None:
    with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE)
        copied = copy.deepcopy(optimizer)
        assert copied.param_groups[0]["momentum"] == 0.9
        for use in (copied.step, copied.zero_grad, copied.synchronize, lambda: copied.version):
            with pytest.raises(ConfigurationError, match="copy of an optimizer"):
                use()
        plain_loop(model, optimizer, batches(2))
        check_same(model, alone(mlp, sgd, batches(2)))


@pytest.mark.parametrize("options", [{}, {"overlap": True}], ids=str)
def test_copies_of_a_model_that_is_trained(options: dict[str, Any]) -> None:
    data = batches(6)
    averaged = torch.optim.swa_utils.AveragedModel
    expected, theirs = mlp(), averaged(mlp())
    optimizer = sgd(expected)
    for each in data:
        plain_loop(expected, optimizer, [each])
        theirs.update_parameters(expected)
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        model = mlp()
        optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE, **options)
        ours = averaged(model)
        for each in data:
            plain_loop(model, optimizer, [each])
            ours.update_parameters(model)
            torch.save(model, file := io.BytesIO())
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            torch.save(model.state_dict(), file := io.BytesIO())
            file.seek(0)
            state = torch.load(file, weights_only=True)
        optimizer.synchronize()
        for other in (model, loaded, copy.deepcopy(model)):
            check_same(other, expected)
        check_same(ours.module, theirs.module)
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        torch.save(optimizer.state_dict(), file := io.BytesIO())
        file.seek(0)
        assert torch.load(file, weights_only=True)["param_groups"][0]["lr"] == 0.1
        loaded(data[0][0])  # which waits for nothing
        plain_loop(loaded, sgd(loaded), data[:1])


def test_a_backward_pass_through_what_is_older_than_the_last_step_is_refused_as_by_pytorch() -> None:
    [(x, y)] = batches(1)
    for options in ({}, {"overlap": True}):
        with InProcessCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
            model = mlp()
            optimizer = zmqps.torch.Optimizer(model, worker, sgd(model), timeout=PATIENCE, **options)
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward(retain_graph=True)
            optimizer.step()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            model[0].weight.grad = torch.ones_like(model[0].weight)  # only this one is stepped
            optimizer.step()
            loss.backward(inputs=[model[4].weight])  # for which it is not needed


def quantized() -> Any:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(12, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.quantization.prepare_qat(model.train())


def float_loop(model: Any, optimizer: Any, data: Any) -> None:
    plain_loop(model, optimizer, [(x.float(), y.float()) for x, y in data])


@pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated, and says so at each call
@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"mode": "async"}], ids=str)
def test_a_model_is_trained_with_quantization_by_the_default_configuration(options: dict[str, Any]) -> None:
    data = batches(8)
    expected = alone(quantized, sgd, data, float_loop)
    [model] = together(quantized, sgd, data, float_loop, workers=1, **options)
    check_same(model, expected, 1e-6)
    for name, buffer in expected.named_buffers():
        assert torch.allclose(dict(model.named_buffers())[name], buffer, equal_nan=True), name


@pytest.mark.filterwarnings("ignore")
def test_two_workers_share_observers_whose_shapes_are_known() -> None:
    data = batches(8)
    with pytest.raises(ConfigurationError, match=r"run one batch through the model before"):
        together(quantized, sgd, data, float_loop)

    def seen() -> Any:
        model = quantized()
        model(data[0][0].float())
        return model

    first, second = together(seen, sgd, data, float_loop, buffers="chief")
    check_same(first, second)
    for name, buffer in first.named_buffers():
        assert torch.equal(dict(second.named_buffers())[name], buffer), name
