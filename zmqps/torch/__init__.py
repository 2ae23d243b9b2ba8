"""PyTorch: a ``torch.optim.Optimizer`` whose updates zmqps' servers compute.

Needs the extra ``torch``. Three ways in: `Optimizer` in the place of a script's own optimizer, `training` around a loop
that stays as it is, and `zmqps.Worker.push` and `zmqps.Worker.pull`, which take tensors by themselves. `Embedding` and
`EmbeddingBag` are layers whose rows are those of a sparse table.
"""

from zmqps.extras import lacks_extra

try:
    import torch  # noqa: F401  (said before anything else here needs it)
except ModuleNotFoundError as error:
    raise lacks_extra("torch", error) from error

from .data import shard
from .embedding import Embedding, EmbeddingBag, tables
from .model import evaluate, parameters_of
from .optimizer import Optimizer, training
from .translate import spec_of

__all__ = [
    "Embedding", "EmbeddingBag", "Optimizer", "evaluate", "parameters_of", "shard", "spec_of", "tables", "training"
]  # fmt: skip
