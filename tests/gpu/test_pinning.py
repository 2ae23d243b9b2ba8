"""Which GPUs a host has, and who gets which; on hosts that exist in these tests only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import zmqps
from zmqps.errors import ConfigurationError, DeviceError
from zmqps.gpu.pinning import pin, spread, visible_gpus
from zmqps.launch.config import ClusterConfig

pytestmark = pytest.mark.processes

LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
  MIG 1g.10gb     Device  0: (UUID: MIG-1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)
"""


def host(path: Path, program: str) -> dict[str, str]:
    """Return the environment of a host with that program as its nvidia-smi."""
    command = path / "nvidia-smi"
    command.write_text(program)
    command.chmod(0o755)
    return {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}


def test_the_driver_says_how_many_there_are(tmp_path: Path) -> None:
    assert visible_gpus(host(tmp_path, f"#!/bin/sh\ncat <<END\n{LISTING}END\n")) == ("0", "1")


@pytest.mark.parametrize("program", ["#!/bin/sh\necho GPU 0: broken; exit 9\n", "#!/no/such/shell\n"])
def test_a_driver_that_does_not_answer_has_none(program: str, tmp_path: Path) -> None:
    assert visible_gpus(host(tmp_path, program)) == ()


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == ()


@pytest.mark.parametrize(
    ("listed", "seen"),
    [("2,3", ("2", "3")), ("GPU-1, MIG-2", ("GPU-1", "MIG-2")), ("", ()), ("-1", ()), ("1,-1,2", ("1",))],
)
def test_the_environment_limits_them_as_it_does_for_cuda(listed: str, seen: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == seen


def test_each_gpu_gets_as_many_servers() -> None:
    assert spread("cpu", 1, ("0", "1")) == ("cuda:0", "cuda:1")
    assert spread("cuda", 2, ("4", "7")) == ("cuda:0", "cuda:1", "cuda:0", "cuda:1")  # as CUDA counts what is visible
    assert spread("cuda:1", None, ("0", "1")) is None


def test_without_a_gpu_only_auto_takes_the_processor() -> None:
    assert spread("auto", 2, ()) == ("cpu", "cpu")
    with pytest.raises(DeviceError, match="no GPU to give servers to"):
        spread("cpu", 1, ())
    with pytest.raises(DeviceError, match="no GPU to pin workers to"):
        pin((), 0)


@pytest.mark.parametrize(("device", "number"), [("cuda:1", 1), ("gpu", 1), ("cpu", 0), ("cpu", True), ("cpu", 1.5)])
def test_contradictions_are_refused(device: str, number: int) -> None:
    with pytest.raises(ConfigurationError):
        spread(device, number, ("0", "1"))


def test_workers_take_turns() -> None:
    assert [pin(("2", "GPU-9"), index)["CUDA_VISIBLE_DEVICES"] for index in range(3)] == ["2", "GPU-9", "2"]


def test_servers_are_told_their_devices() -> None:
    config = ClusterConfig(devices=("cuda:0", "cuda:1"))
    told = [config.for_server(index, "tcp://127.0.0.1:1").device for index in range(3)]
    assert told == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_local_cluster_has_a_server_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.launch.cluster.visible_gpus", lambda: ("0", "1", "2"))
    cluster = zmqps.LocalCluster(zmqps.Servers(servers_per_gpu=1))
    assert cluster._nodes._config.servers == 3
    assert cluster._nodes._config.devices == ("cuda:0", "cuda:1", "cuda:2")
    monkeypatch.setattr("zmqps.launch.cluster.visible_gpus", lambda: ())
    with pytest.raises(DeviceError):
        zmqps.LocalCluster(zmqps.Servers(servers_per_gpu=1))
    with zmqps.LocalCluster(zmqps.Servers(servers_per_gpu=2, device="auto", kernels="numpy")) as cluster:
        assert set(cluster.pids) == {"coordinator", "server-0", "server-1"}
