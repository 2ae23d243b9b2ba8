"""The GPUs of this host, and their assignment to processes.

Asked without opening one: a process that has used CUDA cannot fork any more, and the one that starts the
nodes of a cluster may have to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile

from zmqps import checks
from zmqps.errors import ConfigurationError, DeviceError
from zmqps.gpu.device import parse

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: Seconds that the driver may take to wake up the GPUs of a large host.
TIMEOUT = 60.0


def visible_gpus(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return this host's GPUs, each by what ``CUDA_VISIBLE_DEVICES`` calls it.

    That variable limits them where it is set, as it does for CUDA: what follows the first number below
    zero does not count. Otherwise ``nvidia-smi`` says how many there are; without it there are none.
    """
    environment = os.environ if environment is None else environment
    listed = environment.get(VISIBLE_VARIABLE)
    if listed is not None:
        names = (name.strip() for name in listed.split(","))
        return tuple(takewhile(lambda name: name and not name.startswith("-"), names))
    command = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if command is None:
        return ()
    try:
        result = subprocess.run([command, "--list-gpus"], capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = result.stdout.splitlines() if result.returncode == 0 else []
    return tuple(map(str, range(sum(line.startswith("GPU ") for line in lines))))  # a GPU's parts are indented


def spread(device: str, servers_per_gpu: int | None, gpus: Sequence[str]) -> tuple[str, ...] | None:
    """Return the device of each server; None where it is the same of all, however many there are.

    Parameters
    ----------
    device
        What the user said; ``auto`` takes the processor where there is no GPU.
    servers_per_gpu
        How many servers each GPU gets.
    gpus
        As `visible_gpus` returns them.

    Raises
    ------
    ConfigurationError
        A device was named together with a number for all of them.
    DeviceError
        There is no GPU.
    """
    device = parse(device)
    if servers_per_gpu is None:
        return None
    checks.whole("servers per GPU", servers_per_gpu, 1)
    if device.startswith("cuda:") and device != "cuda:0":
        raise ConfigurationError(
            f"servers_per_gpu places servers on every GPU, device={device!r} on one of them; give one of the two"
        )
    if not gpus and device == "auto":
        return ("cpu",) * servers_per_gpu
    if not gpus:
        raise DeviceError(
            "there is no GPU to give servers to: nvidia-smi lists none, or CUDA_VISIBLE_DEVICES hides them; "
            "--device auto takes the processor then"
        )
    return tuple(f"cuda:{number}" for number in range(len(gpus))) * servers_per_gpu


def pin(gpus: Sequence[str], index: int) -> dict[str, str]:
    """Return the variables that show a worker one GPU, in turn; it is ``cuda:0`` to that worker.

    Raises
    ------
    DeviceError
        There is no GPU.
    """
    if not gpus:
        raise DeviceError("there is no GPU to pin workers to: nvidia-smi lists none, or CUDA_VISIBLE_DEVICES hides it")
    return {VISIBLE_VARIABLE: gpus[index % len(gpus)]}
