"""Train on handwritten digits by Hugging Face's Trainer: its loop, schedule and files here, AdamW on zmqps' servers.

`pip install torch transformers accelerate scikit-learn`, then `zmqps up --workers 2 -- python
examples/trainer_digits.py`; or start servers with `make up`, and run this in as many terminals as you like. The model
is a small vision transformer with random weights. Only the subclass of `Trainer` knows of zmqps.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import zmqps
import zmqps.torch

MODES = {"sync": None, "async": None, "bounded": 3}  # name -> staleness


class Digits(torch.utils.data.Dataset):
    """Images of 8 times 8 pixels, with one channel, and their digits."""

    def __init__(self, images, digits):
        self.images = torch.as_tensor(np.float32(images / 16)).reshape(-1, 1, 8, 8)
        self.digits = torch.as_tensor(digits)

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, place):
        return {"pixel_values": self.images[place], "labels": self.digits[place]}


class ServedTrainer(Trainer):
    """Trainer, with its optimizer on zmqps' servers and a part of the examples for each worker."""

    def __init__(self, worker, mode, **options):
        super().__init__(**options)
        self.worker, self.mode = worker, mode

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            adamw = super().create_optimizer(model)
            self.optimizer = zmqps.torch.Optimizer(
                self.model, self.worker, adamw, mode=self.mode, staleness=MODES[self.mode]
            )
        return self.optimizer

    def get_train_dataloader(self):
        return zmqps.torch.shard(super().get_train_dataloader(), self.worker)


def make_model():
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)


def make_trainer(worker, args):
    x_train, x_test, y_train, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.2, random_state=0)
    arguments = TrainingArguments(
        num_train_epochs=args.passes, per_device_train_batch_size=args.batch, learning_rate=5e-3, weight_decay=0.01,
        warmup_steps=20, lr_scheduler_type="cosine", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        logging_steps=100,
    )  # fmt: skip
    return ServedTrainer(
        worker, args.mode, model=make_model(), args=arguments, train_dataset=Digits(x_train, y_train),
        eval_dataset=Digits(x_test, y_test),
        compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))},
    )  # fmt: skip


def train(trainer):
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    print(f"worker {trainer.worker.rank}: test accuracy {accuracy:.3f}")
    trainer.worker.finish()  # when all have, the cluster ends
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Train a digit classifier, together with all other runs of this script."
    )
    parser.add_argument("--coordinator", help="its address; by default as the environment says")
    parser.add_argument("--passes", type=float, default=8, help="passes over the training data")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--mode", choices=MODES, default="sync", help="how workers keep step")
    options = parser.parse_args()
    with zmqps.connect(options.coordinator, timeout=60) as this:
        train(make_trainer(this, options))
