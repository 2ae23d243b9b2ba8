"""Hugging Face's Trainer, with a subclass of a few lines: it trains, saves and resumes as it does alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from zmqps.errors import ConfigurationError  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    from accelerate.state import AcceleratorState, GradientState

STEPS, EXAMPLES, BATCH, TOKENS, WORDS = 12, 40, 8, 6, 30


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Let others warn of what they like, and forget what Accelerate keeps of a process."""
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def bert() -> Any:
    """Return a classifier with random weights, some of which are not decayed; without dropout, so equal in halves."""
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=TOKENS, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).double()


def gpt2() -> Any:
    """Return a language model with random weights, whose embeddings are tied to its head; a layer is frozen."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=TOKENS, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    model.transformer.wpe.requires_grad_(False)
    return model


class Sentences(torch.utils.data.Dataset):  # type: ignore[misc]
    """Made-up examples: ids of words, and a label for each or, for a language model, the ids."""

    def __init__(self, model: Any) -> None:
        words = torch.randint(0, WORDS, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(0))
        self.words = words
        self.labels = words if isinstance(model, transformers.GPT2LMHeadModel) else words.sum(1) % 3

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"input_ids": self.words[place], "labels": self.labels[place]}


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """The subclass that docs/torch.md shows; without a worker, the Trainer as it is."""

    worker: zmqps.Worker | None = None

    def __init__(self, clip_norm: float | None, **options: Any) -> None:
        super().__init__(**options)
        self.clip_norm = clip_norm

    def create_optimizer(self, model: Any = None) -> Any:
        if self.optimizer is None:
            optimizer = super().create_optimizer(model)
            if self.worker is not None:
                optimizer = zmqps.torch.Optimizer(
                    self.model, self.worker, optimizer, clip_norm=self.clip_norm, timeout=PATIENCE
                )
            self.optimizer = optimizer
        return self.optimizer

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        return loader if self.worker is None else zmqps.torch.shard(loader, self.worker)


class Checkpoints(transformers.TrainerCallback):  # type: ignore[misc]
    """Let the servers save the moments when the Trainer saves; end the training early."""

    def __init__(self, trainer: Trainer, end: int | None) -> None:
        self.trainer, self.end = trainer, end

    def on_save(self, *_: Any, **__: Any) -> None:
        worker = self.trainer.worker
        if worker is not None and worker.is_chief:
            worker.checkpoint(timeout=PATIENCE)

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        control.should_training_stop |= state.global_step == self.end


def prepare(
    output: Path, make: Any, *, end: int | None = None, clip_norm: float | None = None, **arguments: Any
) -> Trainer:
    """Return a Trainer of a model. Not from several threads: Transformers then resets what the process shares."""
    given = {
        "output_dir": str(output), "max_steps": STEPS, "learning_rate": 0.01, "weight_decay": 0.1, "warmup_steps": 3,
        "per_device_train_batch_size": BATCH, "logging_steps": 1, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "save_strategy": "no", "train_sampling_strategy": "sequential", **arguments,
    }  # fmt: skip
    model = make()
    trainer = Trainer(
        clip_norm, model=model, args=transformers.TrainingArguments(**given), train_dataset=Sentences(model)
    )
    trainer.add_callback(Checkpoints(trainer, end))
    return trainer


def fit(
    output: Path, make: Any, worker: zmqps.Worker | None = None, *, resume: bool = False, **options: Any
) -> Trainer:
    """Return a Trainer that has trained a model."""
    trainer = prepare(output, make, **options)
    trainer.worker = worker
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def check_weights(ours: Any, theirs: Any) -> None:
    """Assert that two models have the same weights.

    What moves no output, as the bias of attention's keys, has gradients of rounding alone, which Adam makes larger:
    it differs by some 1e-16, though it is no larger itself.
    """
    expected = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        a, b = parameter.detach().numpy(), expected[name].detach().numpy()
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12, err_msg=name)


def check_equal(ours: Any, theirs: Any) -> None:
    """Assert that two Trainers have the same weights, and have logged the same at each step."""
    check_weights(ours.model, theirs.model)
    for name in ("loss", "learning_rate", "grad_norm"):
        [a, b] = ([entry[name] for entry in each.state.log_history if name in entry] for each in (ours, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12, err_msg=name)  # the Trainer adds losses up in float32


CASES: dict[str, dict[str, Any]] = {
    "linear": {"lr_scheduler_type": "linear"},
    "cosine, clipped": {"lr_scheduler_type": "cosine", "max_grad_norm": 0.3},
    "accumulated": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
    "accumulated, with a rest": {"gradient_accumulation_steps": 3},
    "sgd": {"optim": "sgd", "lr_scheduler_type": "constant_with_warmup"},
    "adagrad": {"optim": "adagrad", "lr_scheduler_type": "inverse_sqrt"},
    "rmsprop": {"optim": "rmsprop", "lr_scheduler_type": "polynomial", "max_grad_norm": 0.0},
    "bf16": {"bf16": True},
}


@pytest.mark.parametrize("make", [bert, gpt2])
@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_it_does_alone(case: str, make: Any, tmp_path: Path) -> None:
    expected = fit(tmp_path, make, **CASES[case])
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        check_equal(fit(tmp_path, make, worker, **CASES[case]), expected)
        assert worker.statistics().clock == STEPS


SAVED = {"save_strategy": "steps", "save_steps": 5, "gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine"}


def cluster(path: Path, workers: int = 1, restore: Path | None = None) -> zmqps.LocalCluster:
    return zmqps.LocalCluster(
        zmqps.Servers(2, kernels="numpy"), workers, saving=zmqps.Saving(checkpoint=path, restore=restore),
        limits=zmqps.Limits(slice_size=4096),
    )  # fmt: skip


def test_training_that_is_resumed_equals_training_that_was_not_interrupted(tmp_path: Path) -> None:
    expected = fit(tmp_path / "plain", bert, **SAVED)
    with cluster(tmp_path / "ps") as first, zmqps.connect(first.address) as worker:
        fit(tmp_path / "ours", bert, worker, end=5, **SAVED)
    with cluster(tmp_path / "ps", restore=tmp_path / "ps") as second, zmqps.connect(second.address) as worker:
        check_equal(fit(tmp_path / "ours", bert, worker, resume=True, **SAVED), expected)


def test_training_is_not_resumed_without_its_moments_or_behind_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(tmp_path / "ps") as first, zmqps.connect(first.address) as worker:
        fit(tmp_path / "ours", bert, worker, end=7, **SAVED)  # saved at step 5, and trained for two more
        assert "version" not in caplog.text
    with cluster(tmp_path / "ps") as second, zmqps.connect(second.address) as worker:
        with pytest.raises(ConfigurationError, match=r"saved at version \d+ of the job, which is at 0.*--restore"):
            fit(tmp_path / "ours", bert, worker, resume=True, **SAVED)


def test_two_workers_with_half_batches_train_and_resume_as_one_does_with_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = {**SAVED, "gradient_accumulation_steps": 1}  # Accelerate keeps where that is for all threads of a process
    expected = fit(tmp_path / "plain", bert, max_grad_norm=0.3, **saved)
    options = {**saved, "per_device_train_batch_size": BATCH // 2, "max_grad_norm": 0.0, "clip_norm": 0.3}

    def work(address: str, trainer: Trainer, resume: bool) -> Any:
        with zmqps.connect(address, timeout=PATIENCE) as worker:
            trainer.worker = worker
            trainer.train(resume_from_checkpoint=resume)
            worker.barrier("end", timeout=PATIENCE)
            return trainer.model

    # Transformers allows what its files need while one thread reads, and then takes that from the whole process: here
    # it is allowed for as long as either reads
    allowed = transformers.trainer_pt_utils.safe_globals()
    monkeypatch.setattr(transformers.trainer, "safe_globals", nullcontext)
    with allowed, ThreadPoolExecutor(2) as threads:
        for end in (5, None):
            with cluster(tmp_path / "ps", workers=2, restore=None if end else tmp_path / "ps") as served:
                trainers = [prepare(tmp_path / name, bert, end=end, **options) for name in "ab"]
                models = list(threads.map(work, [served.address] * 2, trainers, [end is None] * 2))
    for model in models:
        check_weights(model, expected.model)
