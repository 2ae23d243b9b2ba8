"""Loops of other people: Lightning, Accelerate, and DistributedDataParallel within a host. None of them is changed."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import zmqps  # noqa: E402
import zmqps.torch  # noqa: E402
from tests.inprocess import InProcessCluster  # noqa: E402
from tests.pace import allow  # noqa: E402
from tests.team import PATIENCE  # noqa: E402
from tests.torch.models import BATCH, alone, batches, check_same, mlp, together  # noqa: E402

STEPS = 12


def cluster(path: Path, restore: Path | None = None) -> zmqps.LocalCluster:
    return zmqps.LocalCluster(
        zmqps.Servers(2, kernels="numpy"), workers=1, saving=zmqps.Saving(checkpoint=path, restore=restore)
    )


def adamw(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@pytest.fixture
def quiet() -> Any:
    """Let others warn of what they like."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
def test_lightning_trains_as_it_does_alone(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    data = batches(STEPS)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        """A module as anybody writes it, but for one line."""

        def __init__(self, worker: zmqps.Worker | None = None) -> None:
            super().__init__()
            self.net = mlp()
            self.worker = worker

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            optimizer = adamw(self)
            if self.worker is not None:
                optimizer = zmqps.torch.Optimizer(self, self.worker, optimizer, timeout=PATIENCE)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]

    def fit(module: Module, own: Sequence[Any]) -> Module:
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", accumulate_grad_batches=2, gradient_clip_val=None, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(list(own), batch_size=None))
        return module

    expected = fit(Module(), data).net
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        check_same(fit(Module(worker), data).net, expected)
        assert worker.statistics().clock == 3 * STEPS // 2


@pytest.mark.usefixtures("quiet")
def test_a_loop_with_accelerate_trains_as_it_does_alone() -> None:
    accelerate = pytest.importorskip("accelerate")

    def loop(model: Any, optimizer: Any, data: Sequence[Any]) -> None:
        """Train as the examples of Hugging Face do."""
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
        model, prepared, schedule = accelerator.prepare(model, optimizer, schedule)
        for x, y in data:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_value_(model.parameters(), 1.0)
                prepared.step()
                schedule.step()
                prepared.zero_grad()

    data = batches(STEPS)
    [model] = together(mlp, adamw, data, loop, workers=1)
    check_same(model, alone(mlp, adamw, data, loop))


def _lightning_module() -> Any:
    """Return a class of modules as anybody writes them, but for one line."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, worker: zmqps.Worker | None = None, interval: str = "step", **options: Any) -> None:
            super().__init__()
            self.net = mlp()
            self.worker, self.interval, self.options = worker, interval, options

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            optimizer = adamw(self)
            if self.worker is not None:
                optimizer = zmqps.torch.Optimizer(self, self.worker, optimizer, timeout=PATIENCE, **self.options)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": self.interval}}

        def on_save_checkpoint(self, _: Any) -> None:
            if self.worker is not None:
                self.worker.checkpoint(timeout=PATIENCE)

    return Module


class _Manual:
    """Steps taken by the module itself, as for two losses."""

    automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        x, y = batch
        optimizer = self.optimizers()  # type: ignore[attr-defined]
        optimizer.zero_grad()
        self.manual_backward(torch.nn.functional.mse_loss(self.net(x), y))  # type: ignore[attr-defined]
        optimizer.step()
        self.lr_schedulers().step()  # type: ignore[attr-defined]


def _lightning_fit(module: Any, data: Sequence[Any], path: Path, resume: str | None = None, **options: Any) -> Any:
    """Return a trainer of Lightning that has trained a module."""
    lightning = pytest.importorskip("lightning")
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=path, **{"max_epochs": 2, **options},
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(list(data), batch_size=None), ckpt_path=resume)
    return trainer


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize(
    "options",
    [{"gradient_clip_val": 0.1}, {"accumulate_grad_batches": 5}, {"precision": "bf16-mixed"}, {"manual": True}],
    ids=str,
)
def test_lightning_schedules_clips_and_accumulates_as_it_does_alone(
    interval: str, options: dict[str, Any], tmp_path: Path
) -> None:
    given = dict(options)
    kind = _lightning_module()
    if given.pop("manual", False):
        kind = type("Manual", (_Manual, kind), {})
    data = batches(STEPS)
    expected = kind(interval=interval)
    _lightning_fit(expected, data, tmp_path, **given)
    with InProcessCluster(servers=2, slice_size=4096) as cluster, zmqps.connect(cluster.address) as worker:
        ours = kind(worker, interval)
        _lightning_fit(ours, data, tmp_path, **given)
        check_same(ours.net, expected.net)


@pytest.mark.usefixtures("quiet")
def test_lightning_resumes_with_the_moments_of_a_restored_cluster(tmp_path: Path) -> None:
    data, module = batches(STEPS), _lightning_module()
    expected = module()
    _lightning_fit(expected, data, tmp_path, max_epochs=4)
    path = str(tmp_path / "saved.ckpt")
    with cluster(tmp_path / "ps") as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        _lightning_fit(module(worker), data, tmp_path, max_epochs=2).save_checkpoint(path)
    with (
        cluster(tmp_path / "ps", restore=tmp_path / "ps") as second,
        zmqps.connect(second.address, timeout=PATIENCE) as worker,
    ):
        resumed = module(worker)
        _lightning_fit(resumed, data, tmp_path, resume=path, max_epochs=4)
        check_same(resumed.net, expected.net)


@pytest.mark.usefixtures("quiet")
def test_accelerate_saves_and_loads_with_the_moments_of_a_restored_cluster(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def train(worker: zmqps.Worker | None, *, load: bool = False, save: bool = False) -> Any:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = mlp()
        optimizer = adamw(model)
        if worker is not None:
            optimizer = zmqps.torch.Optimizer(model, worker, optimizer, timeout=PATIENCE)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        loader = torch.utils.data.DataLoader(batches(STEPS), batch_size=None)
        model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
        if load:
            accelerator.load_state(str(tmp_path / "state"))
        for number in range(int(load), 2):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            if save and number == 0:
                accelerator.save_state(str(tmp_path / "state"), safe_serialization=False)
                assert worker is not None
                worker.checkpoint(timeout=PATIENCE)
                break
        return accelerator.unwrap_model(model)

    expected = train(None)
    with cluster(tmp_path / "ps") as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        train(worker, save=True)
    with (
        cluster(tmp_path / "ps", restore=tmp_path / "ps") as second,
        zmqps.connect(second.address, timeout=PATIENCE) as worker,
    ):
        check_same(train(worker, load=True), expected)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _in_host(rank: int, port: int, address: str, path: str) -> None:
    """Train a half of each batch in one of two processes, of which the first has the worker."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    group = torch.distributed.group.WORLD
    model = mlp()
    if rank:
        torch.nn.init.zeros_(model[0].weight)  # it gets the values of the first
    worker = zmqps.connect(address, timeout=PATIENCE) if rank == 0 else None
    optimizer = zmqps.torch.Optimizer(model, worker, adamw(model), process_group=group, timeout=PATIENCE)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    for x, y in batches(STEPS):
        part = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(wrapped(x[part]), y[part]).backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{path}/{rank}")
    torch.distributed.barrier()
    if worker is not None:
        worker.finish(timeout=PATIENCE)
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_processes_of_a_host_average_by_ddp_and_one_of_them_talks_to_servers(tmp_path: Path) -> None:
    expected = alone(mlp, adamw, batches(STEPS))
    with InProcessCluster(servers=2, slice_size=4096) as cluster:
        arguments = (_free_port(), cluster.address, str(tmp_path))
        context = torch.multiprocessing.get_context("spawn")
        processes = [context.Process(target=_in_host, args=(rank, *arguments)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(allow(50))
        assert [process.exitcode for process in processes] == [0, 0], threading.enumerate()
    for rank in range(2):
        model = mlp()
        model.load_state_dict(torch.load(tmp_path / str(rank)))
        check_same(model, expected)
