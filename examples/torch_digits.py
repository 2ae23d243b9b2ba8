"""Train a PyTorch network on handwritten digits, on a GPU where there is one: gradients here, Adam on zmqps' servers.

`pip install torch scikit-learn`, start servers with `make up`, then run this in as many terminals as you like; or
`zmqps up --workers 2 -- python examples/torch_digits.py`. The loop is PyTorch's own.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import zmqps
import zmqps.torch

MODES = {"sync": None, "async": None, "bounded": 3}  # name -> staleness


def load_data(device):
    """Return x_train, x_test, y_train, y_test as tensors on a device: images as rows of 64 floats, and their digits."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(np.float32(images / 16), digits, test_size=0.2, random_state=0, stratify=digits)
    return [torch.as_tensor(part, device=device) for part in parts]


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


def train(worker, args):
    x_train, x_test, y_train, y_test = load_data(args.device)
    model = make_model().to(args.device)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    how = {"mode": args.mode, "staleness": MODES[args.mode], "push_codec": args.codec}
    optimizer = zmqps.torch.Optimizer(model, worker, adam, **how)
    loader = DataLoader(TensorDataset(x_train, y_train), batch_size=args.batch, shuffle=True)
    mine = zmqps.torch.shard(loader, worker)
    for _ in range(args.passes):
        for x, y in mine:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(f"worker {worker.rank} on {args.device}: test accuracy {accuracy(model, x_test, y_test):.3f}")
    worker.finish()  # when all have, the cluster ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train a digit classifier, together with all other runs of this script."
    )
    parser.add_argument("--coordinator", help="its address; by default as the environment says")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="as PyTorch calls it")
    parser.add_argument("--passes", type=int, default=30, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--mode", choices=MODES, default="sync", help="how workers keep step")
    parser.add_argument("--codec", default="raw", help="how gradients travel, such as bf16 or topk:fraction=0.1")
    options = parser.parse_args()
    with zmqps.connect(options.coordinator, timeout=60) as this:
        train(this, options)
