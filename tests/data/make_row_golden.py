"""Write row_golden.npz: what PyTorch's optimizers do to tables with sparse gradients, and FBGEMM's equation.

Run it in an environment with ``torch==2.13.0`` (CPU) and numpy::

    python tests/data/make_row_golden.py

Every case starts from ``w0`` and takes a batch a step: ``ids[step]``, in which some repeat and some come late, and
their gradients ``g[step]``; it holds the whole table after each step. Row-wise Adagrad is written out here, in float64,
as FBGEMM's ``EXACT_ROWWISE_ADAGRAD`` with L2 weight decay computes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

STEPS, ROWS, DIM, BATCH = 8, 30, 6, 12
TORCH = {
    "sgd": lambda w: torch.optim.SGD([w], lr=0.3),
    "adagrad": lambda w: torch.optim.Adagrad([w], lr=0.2, initial_accumulator_value=0.1, eps=1e-3),
    "adam": lambda w: torch.optim.SparseAdam([w], lr=0.02, betas=(0.8, 0.95), eps=1e-3),
}
ROWWISE = {"rowwise_adagrad": (0.2, 0.0, 1e-3, 0.0), "rowwise_adagrad with options": (0.2, 0.3, 1e-3, 0.1)}


def by_torch(name: str, w0: np.ndarray, ids: np.ndarray, g: np.ndarray) -> np.ndarray:
    table = torch.nn.Parameter(torch.tensor(w0))
    optimizer, after = TORCH[name](table), []
    for rows, grads in zip(ids, g, strict=True):
        table.grad = torch.sparse_coo_tensor(torch.tensor(rows)[None], torch.tensor(grads), w0.shape)
        optimizer.step()
        after.append(table.detach().numpy().copy())
    return np.array(after)


def rowwise(options: tuple[float, ...], w0: np.ndarray, ids: np.ndarray, g: np.ndarray) -> np.ndarray:
    rate, start, eps, decay = options
    w, v, after = w0.astype(np.float64), np.full(ROWS, start), []
    for rows, grads in zip(ids, g.astype(np.float64), strict=True):
        for row in sorted(set(rows.tolist())):
            gradient = sum(grads[i] for i in range(BATCH) if rows[i] == row) + decay * w[row]
            v[row] += sum(x * x for x in gradient) / DIM
            w[row] -= rate / (np.sqrt(v[row]) + eps) * gradient
        after.append(w.copy())
    return np.array(after, np.float32)


def main() -> None:
    rng = np.random.default_rng(14)
    w0 = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    ids = np.array([rng.integers(0, 6 + 3 * step, BATCH) for step in range(STEPS)])
    g = rng.standard_normal((STEPS, BATCH, DIM)).astype(np.float32)
    cases = {name: by_torch(name, w0, ids, g) for name in TORCH}
    cases |= {name: rowwise(options, w0, ids, g) for name, options in ROWWISE.items()}
    np.savez_compressed(Path(__file__).with_name("row_golden.npz"), w0=w0, ids=ids, g=g, **cases)


if __name__ == "__main__":
    main()
