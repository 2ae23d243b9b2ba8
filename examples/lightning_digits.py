"""Train a Lightning module on handwritten digits: `Trainer.fit` here, Adam on zmqps' servers.

`pip install torch lightning scikit-learn`, start servers with `make up`, then run this in as many terminals as you
like; or `zmqps up --workers 2 -- python examples/lightning_digits.py`. Only `configure_optimizers` knows of zmqps.
"""

import argparse

import lightning
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import zmqps
import zmqps.torch

MODES = {"sync": None, "async": None, "bounded": 3}  # name -> staleness


def load_data():
    """Return x_train, x_test, y_train, y_test as tensors: images as rows of 64 floats, and their digits."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(np.float32(images / 16), digits, test_size=0.2, random_state=0, stratify=digits)
    return map(torch.as_tensor, parts)


class Digits(lightning.LightningModule):
    """A network with one hidden layer."""

    def __init__(self, worker, mode):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        self.worker, self.mode = worker, mode

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        adam = torch.optim.Adam(self.parameters(), lr=2e-3)
        return zmqps.torch.Optimizer(self, self.worker, adam, mode=self.mode, staleness=MODES[self.mode])


def train(worker, args):
    x_train, x_test, y_train, y_test = load_data()
    module = Digits(worker, args.mode)
    loader = DataLoader(TensorDataset(x_train, y_train), batch_size=args.batch, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=args.passes, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(module, zmqps.torch.shard(loader, worker))
    with torch.no_grad():
        accuracy = (module.net(x_test).argmax(dim=1) == y_test).float().mean().item()
    print(f"worker {worker.rank}: test accuracy {accuracy:.3f}")
    worker.finish()  # when all have, the cluster ends
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train a digit classifier, together with all other runs of this script."
    )
    parser.add_argument("--coordinator", help="its address; by default as the environment says")
    parser.add_argument("--passes", type=int, default=30, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--mode", choices=MODES, default="sync", help="how workers keep step")
    options = parser.parse_args()
    with zmqps.connect(options.coordinator, timeout=60) as this:
        train(this, options)
