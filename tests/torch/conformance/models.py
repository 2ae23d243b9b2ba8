"""The models of the suite: modules of torch.nn and what people wrap around them, each of a few dozen parameters."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

SEED = 5
BATCH = 4
IDS = 9


@dataclass(frozen=True)
class Model:
    """One value of the axis.

    Parameters
    ----------
    name, make
        What it is called, and what builds it, in float64 if ``dtype`` does not differ.
    shape, ids
        Of one example; whole numbers below `IDS` in place of floats.
    across
        Whether examples of a batch see one another, or weights depend on which there are, so that half batches are not
        a whole one.
    tolerance
        How far from PyTorch the values may be, relative to the largest of the parameter.
    call
        Returns what is called in place of the model, once the optimizer is made.
    read
        Reads the model between two steps, as a script would; what it returns is compared.
    rules
        Names of optimizers it can be trained with in plain PyTorch; empty: all.
    words, writes
        As of a `Loop`.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    ids: bool = False
    across: bool = False
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-10
    call: Callable[[nn.Module], Callable[..., Any]] | None = None
    read: Callable[[nn.Module], dict[str, torch.Tensor]] | None = None
    rules: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    writes: bool = False

    def build(self) -> nn.Module:
        """Return it with the same values each time."""
        torch.manual_seed(SEED)
        module = self.make()  # whose complex numbers stay what they are
        return module.double() if self.dtype == torch.float64 else module.float()

    def batches(self, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return inputs and targets."""
        generator = torch.Generator().manual_seed(SEED)
        found = []
        for _ in range(number):
            if self.ids:
                x = torch.randint(IDS, (BATCH, *self.shape), generator=generator)
            else:
                x = torch.randn(BATCH, *self.shape, generator=generator, dtype=torch.float64).to(self.dtype)
            found.append((x, torch.sin(x.reshape(BATCH, -1).to(self.dtype).sum(1, keepdim=True))))
        return found


class Over(nn.Module):
    """A layer under a function of its output, and a head above both."""

    def __init__(self, layer: nn.Module, width: int, forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, 1)
        self.through = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.through(self.layer, x).flatten(1)))


def over(layer: Callable[[], nn.Module], width: int, through: Any = lambda layer, x: layer(x)) -> Any:
    """Return what makes a layer with a head."""
    return lambda: Over(layer(), width, through)


def mlp(first: Callable[[nn.Linear], nn.Module] = lambda layer: layer) -> nn.Module:
    """Return three layers, of which the middle one may be wrapped."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), first(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 1))


class Borrowed(nn.Module):
    """Its forward pass uses the weight of a module that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.head = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(F.linear(x, self.other.weight)))


class Tied(nn.Module):
    """An embedding that is the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(IDS, 4), nn.Linear(4, IDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(ids).mean(1)))


class Listed(nn.Module):
    """Parameters in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(6, 6) / 3), nn.Parameter(torch.randn(6, 1))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weights[0]) @ self.weights[1]


class Named(nn.Module):
    """Parameters in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {"in": nn.Parameter(torch.randn(6, 6) / 3), "out": nn.Parameter(torch.randn(6, 1))}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weights["in"]) @ self.weights["out"]


class Raw(nn.Module):
    """Parameters as attributes: one of no dimension, one with none of its own order of memory, one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.inner = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.tanh(x @ self.turned) * self.scale)


class Lora(nn.Module):
    """A frozen layer, and two narrow ones beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class Sometimes(nn.Module):
    """A layer that is used in some steps only, or on some ranks only."""

    def __init__(self, *, by_rank: bool) -> None:
        super().__init__()
        self.first, self.extra, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.by_rank, self.rank, self.calls = by_rank, 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        hidden = torch.tanh(self.first(x))
        if (self.rank + 1) % 2 if self.by_rank else self.calls % 3:
            hidden = hidden + self.extra(hidden)
        return self.head(hidden)


class Ones(nn.Module):
    """A parametrization of one's own: rows add up to one."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.softmax(weight, 1)


class ByHand(nn.Module):
    """Weights rounded to a grid in the forward pass, with the gradient passed straight through."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        if self.training:
            self.largest.copy_(torch.maximum(self.largest * 0.9, weight.detach().abs().max()))
        grid = self.largest / 1e6  # fine: what rounding moves by a last digit stays within the tolerance
        return F.linear(x, weight + (torch.round(weight / grid) * grid - weight).detach(), self.layer.bias)


class Checkpointed(nn.Module):
    """Activations are computed again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        again = torch.utils.checkpoint.checkpoint(self.middle, hidden, use_reentrant=self.reentrant)
        return self.head(torch.tanh(again))


class Masked(nn.Module):
    """A transformer, whole."""

    def __init__(self, **bias: bool) -> None:
        super().__init__()
        self.inner = nn.Transformer(4, 2, 1, 1, 4, dropout=0.0, batch_first=True, **bias)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x, x.flip(1)).mean(1))


class Cells(nn.Module):
    """Cells of recurrent networks, called step by step."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Qat(nn.Module):
    """Two layers that `prepare_qat` has changed, with its default configuration."""

    def __init__(self, *, warm: bool = False) -> None:
        super().__init__()
        quantization = torch.ao.quantization
        self.inner = nn.Sequential(quantization.QuantStub(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
        self.inner.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        quantization.prepare_qat(self.inner.train(), inplace=True)
        if warm:  # its buffers have their shapes then
            self.inner(torch.randn(BATCH, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def lazy() -> nn.Module:
    """Return lazy layers that have seen a batch."""
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(1))
    model(torch.zeros(2, 6))
    return model


def compiled_part(**options: Any) -> nn.Module:
    """Return a model of which one part is compiled."""
    return mlp(lambda layer: torch.compile(layer, **options))


def itself_compiled(model: nn.Module) -> nn.Module:
    """Compile a model in its place."""
    model.compile(backend="eager")
    return model


def averaged(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return what an average of the values over the steps has, which lies at the model."""
    mean = model.__dict__.setdefault("mean_of_steps", torch.optim.swa_utils.AveragedModel(mlp().double()))
    mean.update_parameters(model)
    return {name: p.detach().clone() for name, p in mean.module.named_parameters()}


def of_a_part(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model[0].state_dict().items()}


def of_a_copy(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in copy.deepcopy(model).named_parameters()}


def as_a_vector(model: nn.Module) -> dict[str, torch.Tensor]:
    return {"vector": nn.utils.parameters_to_vector(model.parameters()).detach()}


def as_arrays(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(p.detach().numpy().copy()) for name, p in model.named_parameters()}


def as_data(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.data.clone() for name, p in model.named_parameters()}


def as_a_file(model: nn.Module) -> dict[str, torch.Tensor]:
    file = io.BytesIO()
    torch.save(model[2].state_dict(), file)
    file.seek(0)
    return torch.load(file)


def as_numbers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {"list": torch.tensor(model[0].weight.tolist()), "item": torch.tensor(model[4].bias.item())}


def functional(model: nn.Module) -> Callable[..., Any]:
    """Return a function of a batch that hands the model's parameters to it as arguments."""
    return lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,))


class Twice(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.first(torch.tanh(self.first(x)))))


class Frozen(nn.BatchNorm1d):
    """A norm that stays as it is in evaluation."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


class Nothing(nn.Module):
    """A parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.nothing = nn.Linear(6, 1), nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.nothing.sum()


class Complex(nn.Module):
    """A parameter of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.turn = nn.Linear(6, 6), nn.Parameter(torch.randn(6, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) * self.turn).real.sum(1)


def _norms() -> list[Model]:
    # no bias in front of what takes the mean off: its gradient is nothing but rounding, of which Adam makes whole steps
    def after(convolution: type[nn.Module], channels: int, kernel: int, norm: nn.Module) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(convolution(channels, 2, kernel, bias=False), copy.deepcopy(norm))

    image, movie = (3, 4, 4), (1, 3, 3, 3)
    rows = nn.BatchNorm1d(4)
    return [
        Model("layer-norm", lambda: mlp(lambda layer: nn.Sequential(layer, nn.LayerNorm(4)))),
        Model("rms-norm", lambda: mlp(lambda layer: nn.Sequential(layer, nn.RMSNorm(4)))),
        Model("group-norm", over(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), 16), image),
        Model("instance-norm", over(after(nn.Conv2d, 3, 2, nn.InstanceNorm2d(2, affine=True)), 18), image),
        Model("batch-norm-1d", lambda: mlp(lambda _: nn.Sequential(nn.Linear(5, 4, bias=False), copy.deepcopy(rows))),
              across=True),
        Model("batch-norm-2d", over(after(nn.Conv2d, 3, 3, nn.BatchNorm2d(2)), 8), image, across=True),
        Model("batch-norm-3d", over(after(nn.Conv3d, 1, 2, nn.BatchNorm3d(2, momentum=None)), 16), movie, across=True),
    ]  # fmt: skip


def _layers() -> list[Model]:
    def first(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)[0]

    words, sequence = (3,), (3, 4)
    return [
        Model("linear", mlp),
        Model("conv-1d", over(lambda: nn.Conv1d(2, 3, 3), 12), (2, 6)),
        Model("conv-2d", over(lambda: nn.Conv2d(2, 3, 3), 12), (2, 4, 4)),
        Model("conv-2d-channels-last", over(lambda: nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last), 12),
              (2, 4, 4)),
        Model("conv-3d", over(lambda: nn.Conv3d(1, 2, 2), 16), (1, 3, 3, 3)),
        Model("conv-transpose-1d", over(lambda: nn.ConvTranspose1d(2, 2, 2), 10), (2, 4)),
        Model("conv-transpose-2d", over(lambda: nn.ConvTranspose2d(2, 2, 2), 18), (2, 2, 2)),
        Model("conv-transpose-3d", over(lambda: nn.ConvTranspose3d(1, 1, 2), 27), (1, 2, 2, 2)),
        Model("embedding", over(lambda: nn.Embedding(IDS, 2, padding_idx=0), 6), words, ids=True),
        Model("embedding-max-norm", over(lambda: nn.Embedding(IDS, 2, max_norm=1.0), 6), words, ids=True,
              writes=True, across=True, words=("max_norm",)),
        Model("embedding-sparse", over(lambda: nn.Embedding(IDS, 2, sparse=True), 6), words, ids=True,
              rules=("sgd", "adagrad")),
        Model("embedding-bag", over(lambda: nn.EmbeddingBag(IDS, 3), 3), words, ids=True),
        Model("embedding-bag-max", over(lambda: nn.EmbeddingBag(IDS, 3, mode="max"), 3), words, ids=True),
        Model("rnn", over(lambda: nn.RNN(4, 3, batch_first=True), 9, first), sequence),
        Model("lstm", over(lambda: nn.LSTM(4, 3, batch_first=True, num_layers=2), 9, first), sequence),
        Model("lstm-projected", over(lambda: nn.LSTM(4, 3, batch_first=True, proj_size=2), 6, first), sequence),
        Model("gru", over(lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True), 18, first), sequence),
        Model("rnn-cell", lambda: Cells(nn.RNNCell), sequence),
        Model("lstm-cell", lambda: Cells(nn.LSTMCell), sequence),
        Model("gru-cell", lambda: Cells(nn.GRUCell), sequence),
        Model("prelu", lambda: mlp(lambda layer: nn.Sequential(layer, nn.PReLU(4)))),
        Model("bilinear", over(lambda: nn.Bilinear(6, 6, 2), 2, lambda layer, x: layer(x, x))),
    ]  # fmt: skip


#: The bias of an attention's keys has a gradient that is nothing but rounding, of which the others make whole steps.
LINEAR = ("sgd", "sgd-decay", "momentum", "dampening", "nesterov")


def _attention() -> list[Model]:
    sequence = (3, 4)
    layer = {"d_model": 4, "nhead": 2, "dim_feedforward": 4, "dropout": 0.0, "batch_first": True}

    def attend(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x, x, x)[0]

    def models(suffix: str, rules: tuple[str, ...], **bias: bool) -> list[Model]:
        def encoder() -> nn.Module:
            return nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer, **bias), 2, enable_nested_tensor=False)

        return [
            Model(f"attention{suffix}", over(lambda: nn.MultiheadAttention(4, 2, batch_first=True, **bias), 12, attend),
                  sequence, rules=rules),
            Model(f"encoder-layer{suffix}", over(lambda: nn.TransformerEncoderLayer(**layer, **bias), 12), sequence,
                  rules=rules),
            Model(f"encoder{suffix}", over(encoder, 12), sequence, rules=rules),
            Model(f"decoder{suffix}",
                  over(lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer, **bias), 1), 12,
                       lambda layer, x: layer(x, x)),
                  sequence, rules=rules),
            Model(f"transformer{suffix}", lambda: Masked(**bias), sequence, rules=rules),
        ]  # fmt: skip

    return models("", LINEAR) + models("-no-bias", (), bias=False)


def _wrappers() -> list[Model]:
    return [
        Model("weight-norm-old", lambda: mlp(nn.utils.weight_norm)),
        Model("weight-norm", lambda: mlp(parametrizations.weight_norm)),
        Model("spectral-norm-old", lambda: mlp(nn.utils.spectral_norm)),
        Model("spectral-norm", lambda: mlp(parametrizations.spectral_norm)),
        Model("orthogonal", lambda: mlp(parametrizations.orthogonal), tolerance=1e-9),  # it solves equations
        Model("parametrize", lambda: mlp(lambda layer: parametrize.register_parametrization(layer, "weight", Ones()))),
        Model("lora", lambda: mlp(Lora)),
        Model("tied", Tied, (3,), ids=True),
        Model("borrowed-weight", Borrowed),
        Model("used-twice", Twice),
        Model("functional-call", mlp, call=functional),
        Model("scripted", mlp, call=torch.jit.script),
        Model("traced", lambda: torch.fx.symbolic_trace(mlp())),
        Model("frozen-batch-norm", lambda: mlp(lambda layer: nn.Sequential(layer, Frozen(4)))),
        Model("no-elements", Nothing),
        Model("complex", Complex, words=("complex",)),
        # a last digit of float32, times the steps
        Model("float32", mlp, dtype=torch.float32, tolerance=2e-5),
        Model("parameter-list", Listed),
        Model("parameter-dict", Named),
        Model("raw-parameters", Raw),
        Model("lazy", lazy),
        Model("unused-in-steps", lambda: Sometimes(by_rank=False)),
        Model("unused-on-ranks", lambda: Sometimes(by_rank=True)),
        # float32, as its kernels; a value that rounding moves over the edge of a step of the grid moves by 1/255
        Model("qat", Qat, across=True, dtype=torch.float32, tolerance=1e-4),
        Model("qat-warm", lambda: Qat(warm=True), across=True, dtype=torch.float32, tolerance=1e-4),
        Model("fake-quantized", lambda: mlp(ByHand), tolerance=1e-5),
        # code for shapes that change rounds in another way, which Adagrad's division by a small root enlarges
        Model("compiled", mlp, call=lambda model: torch.compile(model, backend="eager"), tolerance=1e-7),
        Model("compiled-before", lambda: torch.compile(mlp(), backend="eager"), tolerance=1e-7),
        Model("compiled-aot", mlp, call=lambda model: torch.compile(model, backend="aot_eager"), tolerance=1e-7),
        Model("compiled-in-place", mlp, call=itself_compiled, tolerance=1e-7),
        Model("compiled-part", lambda: compiled_part(backend="eager"), tolerance=1e-7),
        Model("checkpoint", lambda: Checkpointed(reentrant=False)),
        Model("checkpoint-reentrant", lambda: Checkpointed(reentrant=True)),
        Model("read-state", mlp, read=of_a_part),
        Model("read-copy", mlp, read=of_a_copy),
        Model("read-average", mlp, read=averaged),
        Model("read-vector", mlp, read=as_a_vector),
        Model("read-numpy", mlp, read=as_arrays),
        Model("read-data", mlp, read=as_data),
        Model("read-file", mlp, read=as_a_file),
        Model("read-numbers", mlp, read=as_numbers),
    ]


MODELS = {model.name: model for model in [*_layers(), *_norms(), *_attention(), *_wrappers()]}
