"""What reads a tensor whose values are on their way waits for them, wherever it reads it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from zmqps.errors import PeerLostError  # noqa: E402
from zmqps.torch.arrivals import Arrivals, Group, _AwaitedParameter  # noqa: E402


class Late(Future):  # type: ignore[type-arg]
    """Values that come when something waits for them, and not before."""

    def __init__(self, tensor: Any, error: Exception | None = None) -> None:
        super().__init__()
        self._array, self._error = tensor.numpy(), error

    def result(self, timeout: float | None = None) -> None:
        if self._error is not None:
            raise self._error
        self._array[...] = 0.25


def expect(arrivals: Arrivals, model: Any, error: Exception | None = None) -> None:
    """Let all tensors of a model be on their way: they become quarters."""
    for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
        alias = tensor.detach()
        alias.fill_(100.0)
        arrivals.expect(Group([tensor], [Late(alias, error)], lambda: None))


class Net(torch.nn.Module):
    """One layer, which others read in other ways than by calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3, bias=False)
        self.norm = torch.nn.BatchNorm1d(3, affine=False)

    def forward(self, x: Any) -> Any:
        return self.norm(torch.nn.functional.linear(x, self.fc.weight))


class Twice(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, w: Any) -> Any:
        return w * 1

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)["fc.weight"]


def average(model: Any) -> Any:
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    return averaged.module.fc.weight


READS: dict[str, Callable[[Any], Any]] = {
    "its module": lambda m: m.fc(torch.eye(3)),
    "a function": lambda m: torch.nn.functional.linear(torch.eye(3), m.fc.weight),
    "an operator": lambda m: m.fc.weight * 1,
    "an operator from the right": lambda m: 1 * m.fc.weight,
    "data": lambda m: m.fc.weight.data,
    "detach": lambda m: m.fc.weight.detach(),
    "an element": lambda m: m.fc.weight[0, 0],
    "a list of tensors": lambda m: torch.cat([m.fc.weight, m.fc.weight]),
    "a keyword": lambda m: torch.add(input=m.fc.weight, other=0),
    "numpy": lambda m: m.fc.weight.detach().numpy(),
    "tolist": lambda m: m.fc.weight.tolist(),
    "item": lambda m: m.fc.weight[0, 0].item(),
    "in place": lambda m: m.fc.weight.detach().mul_(1),
    "foreach": lambda m: torch._foreach_mul([m.fc.weight], 1.0)[0],
    "state_dict": lambda m: m.state_dict()["fc.weight"],
    "state_dict of a submodule": lambda m: m.fc.state_dict()["weight"],
    "state_dict with the tensors": lambda m: m.state_dict(keep_vars=True)["fc.weight"].detach(),
    "a file": saved,
    "deepcopy": lambda m: copy.deepcopy(m).fc.weight,
    "deepcopy of a parameter": lambda m: copy.deepcopy(m.fc.weight),
    "copy of a parameter": lambda m: copy.copy(m.fc.weight).detach(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m.fc.weight)),
    "an average": average,
    "a vector of all": lambda m: torch.nn.utils.parameters_to_vector(m.fc.parameters()),
    "functional_call": lambda m: torch.func.functional_call(m.fc, dict(m.fc.named_parameters()), (torch.eye(3),)),
    "the gradient of a function": lambda m: torch.func.grad_and_value(
        lambda p: torch.func.functional_call(m.fc, p, (torch.eye(3),)).mean()
    )(dict(m.fc.named_parameters()))[1],
    "vmap": lambda m: torch.vmap(lambda w: w * 1)(m.fc.weight),
    "a function with its own backward pass": lambda m: Twice.apply(m.fc.weight),
    "einsum": lambda m: torch.einsum("ij,jk->ik", torch.eye(3), m.fc.weight),
    "another dtype": lambda m: m.fc.weight.to(torch.float64),
    "the storage": lambda m: torch.tensor([]).set_(m.fc.weight.untyped_storage()),
    "a buffer": lambda m: m.norm.running_mean,
    "a buffer by name": lambda m: dict(m.named_buffers())["norm.running_var"] * 1,
    "custom operator": lambda m: torch.ops.aten.mul(m.fc.weight, 1),
    "dlpack": lambda m: torch.from_dlpack(m.fc.weight.detach()),
    "text": lambda m: [float(repr(m.fc.weight).count("0.25")) / 36],
}


@pytest.fixture
def model() -> Any:
    return Net()


@pytest.fixture
def arrivals(model: Any) -> Iterator[Arrivals]:
    made = Arrivals(model)
    yield made
    made.wait()
    made.close()


@pytest.mark.parametrize("read", READS)
def test_the_new_values_are_read(read: str, model: Any, arrivals: Arrivals) -> None:
    expect(arrivals, model)
    found = READS[read](model)
    array = found.detach().numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    assert np.unique(array).tolist() == [0.25]


def test_a_read_waits_for_its_own_tensor_and_no_other(model: Any, arrivals: Arrivals) -> None:
    other = torch.nn.Parameter(torch.ones(2))
    model.register_parameter("other", other)
    expect(arrivals, model)
    assert model.fc.weight.sum() == 0.25 * 9
    assert type(model.fc.weight) is torch.nn.Parameter
    assert type(other) is _AwaitedParameter
    assert isinstance(other, torch.nn.Parameter)
    assert arrivals.pending
    arrivals.wait()
    assert not arrivals.pending
    assert other.tolist() == [0.25, 0.25]


def test_what_does_not_depend_on_values_does_not_wait(model: Any, arrivals: Arrivals) -> None:
    weight = model.fc.weight
    (weight * 1).sum().backward()
    expect(arrivals, model)
    model.zero_grad()
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad(set_to_none=False)
    assert weight.grad is None
    assert (weight.shape, weight.ndim, weight.numel()) == ((3, 3), 2, 9)
    assert (weight.dtype, weight.device.type, weight.requires_grad) == (torch.float32, "cpu", True)
    weight.requires_grad_(False)
    weight.requires_grad = True
    weight.register_hook(lambda grad: None).remove()
    assert weight in {weight}
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 9
    assert type(weight) is _AwaitedParameter


def test_a_module_waits_before_it_runs_also_for_code_that_pytorch_does_not_see(model: Any, arrivals: Arrivals) -> None:
    seen: list[Any] = []
    model.fc.register_forward_pre_hook(lambda module, args: seen.append(type(module.weight)))
    expect(arrivals, model)
    model.fc(torch.eye(3))
    assert seen == [torch.nn.Parameter]


def test_the_model_waits_for_everything_when_it_is_evaluated() -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    arrivals = Arrivals(encoder)
    x = torch.ones(1, 2, 4)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.fill_(0.25)
        expected = encoder(x)  # by the fast path, which asks for the classes of its tensors
        for part in (encoder, encoder.layers[0]):
            expect(arrivals, encoder)
            found = part(x)
            assert torch.equal(found, expected if part is encoder else encoder.layers[0](x))
    arrivals.wait()
    arrivals.close()


def test_a_failure_is_raised_by_each_read_until_it_was_waited_for(model: Any, arrivals: Arrivals) -> None:
    expect(arrivals, model, PeerLostError(role="server", name="server-0", silent_s=1.0, advice="start it"))
    for _ in range(2):
        with pytest.raises(PeerLostError):
            model.fc.weight.sum()
    with pytest.raises(PeerLostError):
        arrivals.wait()
    assert model.fc.weight.sum() == 900.0
    assert not arrivals.pending


def test_a_tensor_of_another_class_is_waited_for_at_once(model: Any, arrivals: Arrivals) -> None:
    class Own(torch.nn.Parameter):
        pass

    model.fc.weight = Own(torch.ones(3, 3))
    expect(arrivals, model)
    assert type(model.fc.weight) is Own
    assert np.unique(model.fc.weight.detach().numpy()).tolist() == [0.25]


def test_a_copy_of_a_model_does_not_wait_and_can_be_written_to_a_file(model: Any, arrivals: Arrivals) -> None:
    expect(arrivals, model)
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(copied, file)
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    expect(arrivals, model)
    for other in (copied, loaded, pickle.loads(pickle.dumps(model))):
        assert other(torch.eye(3)).shape == (3, 3)
        assert np.unique(other.fc.weight.detach().numpy()).tolist() == [0.25]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", ["before", "after", "in place", "a layer", "a function"])
def test_compiled_models_wait_as_well(how: str, backend: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    run: Any = net
    if how == "before":
        run = net = torch.compile(net, backend=backend)
    arrivals = Arrivals(net)
    if how == "after":
        run = torch.compile(net, backend=backend)
    elif how == "in place":
        net.compile(backend=backend)
    elif how == "a layer":
        net[0] = torch.compile(net[0], backend=backend)
    elif how == "a function":
        run = torch.compile(lambda x: torch.nn.functional.linear(x, net[0].weight), backend=backend)
    run(torch.eye(3)).sum().backward()
    parameters = list(net.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(0.25)
        expected = run(torch.eye(3))
    for _ in range(3):
        net.zero_grad()
        expect(arrivals, net)
        found = run(torch.eye(3))
        assert torch.equal(found, expected)
        found.sum().backward()
    arrivals.wait()
    arrivals.close()
