"""The tensors of a model, by name."""

from __future__ import annotations

import torch

from zmqps.torch.embedding import is_rows


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's parameters as tensors that may be written to; tied ones once, by their first name.

    Without those of embeddings whose rows are in a table.
    """
    return {name: parameter.detach() for name, parameter in model.named_parameters() if not is_rows(parameter)}


def buffers_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers that belong to its state: not those it can make again, nor complex ones."""
    state = model.state_dict(keep_vars=True).keys()
    return {n: b.detach() for n, b in model.named_buffers() if n in state and not b.is_complex()}
