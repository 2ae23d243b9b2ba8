"""The coordinator's address in the environment of a training script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from zmqps.core.protocol.endpoints import check_peer
from zmqps.errors import ConfigurationError
from zmqps.net.system.tasks import DEFAULT_PORT, find

#: Variables of torchrun.
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def find_address(env: Mapping[str, str], fqdn: Callable[[], str] = str) -> tuple[str, str]:
    """Return the coordinator's endpoint, and the variables that have it.

    The most specific counts: variables for zmqps, then of torchrun, TensorFlow or ps-lite, then of the
    scheduler that started them.

    Parameters
    ----------
    env
        The environment.
    fqdn
        Returns this host's full name, by which pods of Kubernetes address each other; asks a name server.

    Raises
    ------
    ConfigurationError
        A variable is malformed, or none has the coordinator's address.
    """
    if address := env.get("ZMQPS_COORDINATOR"):
        return _checked(address, "ZMQPS_COORDINATOR", address), "ZMQPS_COORDINATOR"
    if env.get("MASTER_ADDR") and "RANK" in env and "WORLD_SIZE" in env:
        launched = find({name: env[name] for name in TORCHRUN if name in env})
        address = f"tcp://{launched.host}:{launched.port or DEFAULT_PORT}"
        return _checked(address, "MASTER_ADDR", launched.host), "MASTER_ADDR"
    if text := env.get("TF_CONFIG"):
        return _checked(f"tcp://{_of_tensorflow(text)}", "TF_CONFIG", text), "TF_CONFIG"
    if host := env.get("DMLC_PS_ROOT_URI"):
        port = env.get("DMLC_PS_ROOT_PORT") or str(DEFAULT_PORT)
        if not re.fullmatch(r"[0-9]{1,5}", port):
            raise ConfigurationError(
                f"DMLC_PS_ROOT_PORT is {port!r:.40}, which is not a port: give a number up to 65535"
            )
        return _checked(f"tcp://{host}:{port}", "DMLC_PS_ROOT_URI", host), "DMLC_PS_ROOT_URI"
    task = find(env, fqdn() if "JOB_COMPLETION_INDEX" in env else "")
    if task.host:
        return _checked(f"tcp://{task.host}:{task.port or DEFAULT_PORT}", task.source, task.host), task.source
    raise ConfigurationError(
        "say where the coordinator is: connect('tcp://HOST:PORT'), a token, or ZMQPS_COORDINATOR. It is not in "
        "MASTER_ADDR with RANK and WORLD_SIZE, TF_CONFIG, DMLC_PS_ROOT_URI, or the variables of Slurm, Open MPI and "
        "Kubernetes"
    )


def _of_tensorflow(text: str) -> str:
    """Return host and port of the chief; of the first worker if the cluster has no chief."""
    try:
        cluster = json.loads(text)["cluster"]
        first = (cluster.get("chief") or cluster["worker"])[0]
        if isinstance(first, str):
            return first
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        pass
    raise ConfigurationError(
        f'TF_CONFIG is {text!r:.80}: give JSON such as {{"cluster": {{"chief": ["HOST:PORT"]}}}}, or an address'
    )


def _checked(address: str, variable: str, value: str) -> str:
    try:
        check_peer(address)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{variable} is {value!r:.80}, which gives no endpoint tcp://HOST:PORT: {error}"
        ) from None
    return address
