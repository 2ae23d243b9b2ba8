"""What the scripts train, and how their steps are measured; the same for all of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

#: The model, and the examples of a step of all workers together.
KIND, _, _batch = os.environ.get("FRAMEWORKS_TASK", "gpt-8").partition("-")
BATCH = int(_batch)
WARM_UP = 10
#: Examples that the final loss is of.
LOOKED_AT = 480


class Block(nn.Module):
    """Attention, then two layers, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.heads = nn.LayerNorm(width), heads
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.between, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Any) -> Any:
        """Return a sequence with the outputs added."""
        q, k, v = self.attend(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.between(x))))


class Gpt(nn.Module):
    """A GPT of two million parameters over bytes; its last layer is its first one."""

    def __init__(self, width: int = 192, depth: int = 4, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x: Any) -> Any:
        """Return the logits of the next byte at each place, classes second."""
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


class Cnn(nn.Module):
    """A small network for small pictures, with BatchNorm, which needs no bias before it."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        self.features, self.head = nn.Sequential(*layers), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits of the classes."""
        return self.head(self.features(x).mean((2, 3)))


class Task:
    """A model, its examples, and what is to be said of a run, by the environment.

    ``FRAMEWORKS_TASK`` is gpt or cnn with the size of a batch, say gpt-8, ``FRAMEWORKS_DTYPE`` a dtype,
    ``FRAMEWORKS_STEPS`` a number, and ``FRAMEWORKS_RESULT`` the beginning of a file's name.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.steps = int(os.environ["FRAMEWORKS_STEPS"])
        dtype = getattr(torch, os.environ["FRAMEWORKS_DTYPE"])
        generator = torch.Generator().manual_seed(5)
        number = BATCH * self.steps
        torch.manual_seed(1)
        if KIND == "gpt":
            self.model: nn.Module = Gpt().to(dtype)
            # bytes that follow each other by a rule, with some chance
            text = torch.cumsum(torch.randint(1, 4, (number, 65), generator=generator), 1) % 256
            self.data = TensorDataset(text[:, :-1], text[:, 1:])
        else:
            self.model = Cnn().to(dtype)
            labels = torch.randint(10, (number,), generator=generator)
            pictures = torch.randn(number, 3, 16, 16, generator=generator, dtype=torch.float64)
            self.data = TensorDataset((pictures + labels.view(-1, 1, 1, 1) / 5).to(dtype), labels)

    def measured(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, and note when."""
        self.times = [time.perf_counter()]
        for batch in loader:
            yield batch
            self.times.append(time.perf_counter())

    def report(self, model: nn.Module, rank: int) -> None:
        """Write down the seconds of each step, the values, and the loss of the first examples with them."""
        seconds = [
            after - before for before, after in zip(self.times[WARM_UP:], self.times[WARM_UP + 1 :], strict=False)
        ]
        with torch.no_grad():
            loss = float(loss_of(model(self.data.tensors[0][:LOOKED_AT]), self.data.tensors[1][:LOOKED_AT]))
        path = f"{os.environ['FRAMEWORKS_RESULT']}-{rank}"
        torch.save({name: value.double() for name, value in model.named_parameters()}, path + ".pt")
        with open(path + ".json", "w") as file:
            json.dump({"seconds": seconds, "loss": loss}, file)


def loss_of(outputs: Any, targets: Any) -> Any:
    """Return the mean over all that is to be said."""
    return nn.functional.cross_entropy(outputs, targets)
