"""What the environment of a process says: which of many equal tasks it is, and where the coordinator is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from zmqps.core.protocol.endpoints import check_peer
from zmqps.errors import ConfigurationError

DEFAULT_PORT = 5570
#: Ports for jobs of Slurm, so that two jobs on a host do not share one; below the system's ephemeral range.
FIRST_PORT, NUM_PORTS = 15000, 10000
#: The most hosts searched in a Slurm list, and the most parts of a heterogeneous job.
MOST_HOSTS, MOST_PARTS = 65536, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """This task among all tasks.

    Attributes
    ----------
    rank, size
        Which of how many; None: unknown.
    host, port
        The host of rank 0 and its port; empty, and None: unknown.
    source
        The launcher that said so.
    """

    rank: int | None = None
    size: int | None = None
    host: str = ""
    port: int | None = None
    source: str = "options"


def find_task(env: Mapping[str, str], fqdn: str = "") -> Rank:
    """Return the task in the environment; of several launchers the innermost counts.

    Parameters
    ----------
    env
        The environment.
    fqdn
        This host's full name, from which a pod of Kubernetes derives that of the first one.

    Raises
    ------
    ConfigurationError
        A variable is not a number, or this is not a task of the job.
    """
    if "OMPI_COMM_WORLD_RANK" in env:
        alone = env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env.get("OMPI_COMM_WORLD_SIZE")
        return Rank(
            rank=_number(env, "OMPI_COMM_WORLD_RANK"), size=_number(env, "OMPI_COMM_WORLD_SIZE"),
            host="127.0.0.1" if alone else "", source="Open MPI",
        )  # fmt: skip
    if "PMI_RANK" in env:
        return Rank(rank=_number(env, "PMI_RANK"), size=_number(env, "PMI_SIZE"), source="PMI")
    if "RANK" in env and "WORLD_SIZE" in env:
        # torchrun's own store listens on MASTER_PORT; other launchers that set it have opened that port for us
        taken = "TORCHELASTIC_RUN_ID" in env
        return Rank(
            rank=_number(env, "RANK"), size=_number(env, "WORLD_SIZE"), host=env.get("MASTER_ADDR", ""),
            port=None if taken else _number(env, "MASTER_PORT", optional=True), source="torchrun",
        )  # fmt: skip
    if "JOB_COMPLETION_INDEX" in env:
        index = _number(env, "JOB_COMPLETION_INDEX")
        return Rank(rank=index, host=_first_pod(env, fqdn, index), source="Kubernetes")
    if "SLURM_PROCID" in env:
        return _slurm(env)
    return Rank()


def _slurm(env: Mapping[str, str]) -> Rank:
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID", ""))
    if not step:  # the batch script itself, which also has rank 0
        raise ConfigurationError("Slurm runs this only once: start it with srun, `srun zmqps run …`")
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", "")
    job = _number(env, "SLURM_JOB_ID", optional=True) or 0
    number = int(step) if step.isdecimal() and len(step) < 10 else 0
    return Rank(
        rank=_number(env, "SLURM_PROCID"), size=_number(env, size), host=_first_of_slurm(env, nodes),
        port=FIRST_PORT + (7 * job + number) % NUM_PORTS, source="Slurm",
    )  # fmt: skip


def _first_of_slurm(env: Mapping[str, str], nodes: str) -> str:
    """Return the host of rank 0 of a step on these nodes; empty: Slurm does not name it."""
    if env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        return ""
    # Ranks of a heterogeneous job begin with its first part, while the nodes of its steps are sorted by name.
    for number in range(min(_number(env, "SLURM_HET_SIZE", optional=True), MOST_PARTS)):
        first = first_host(env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", ""))
        if first and first in islice(hosts(nodes), MOST_HOSTS):  # else this step omits that part
            return first
    return first_host(nodes)


def hosts(nodes: str) -> Iterator[str]:
    """Yield the hosts of a Slurm list: ``n[01-03,7],m2`` are n01, n02, n03, n7 and m2."""
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        yield from _hosts_of(entry)


def _hosts_of(entry: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[]*)\[([\d,-]*)\](.*)", entry)
    if match is None:
        yield entry
        return
    for low, high in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", match[2]):
        for number in range(int(low), int(high or low) + 1):
            for rest in _hosts_of(match[3]):
                yield f"{match[1]}{number:0{len(low)}}{rest}"


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm list: ``n[01-03,7],m2`` begins with n01."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _first_pod(env: Mapping[str, str], fqdn: str, index: int) -> str:
    """Return the name of the pod with index 0: those of a Job differ only in the end of their first label."""
    if "JOBSET_NAME" in env and "REPLICATED_JOB_NAME" in env:
        return (
            f"{env['JOBSET_NAME']}-{env['REPLICATED_JOB_NAME']}-0-0.{env.get('JOBSET_SUBDOMAIN', env['JOBSET_NAME'])}"
        )
    label, dot, rest = fqdn.partition(".")
    return f"{label.removesuffix(f'-{index}')}-0{dot}{rest}" if label.endswith(f"-{index}") else ""


def _number(env: Mapping[str, str], name: str, *, optional: bool = False) -> int:
    text = env.get(name, "")
    if optional and not text:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigurationError(
            f"{name} is {text!r:.40}, which is not a number; give --rank, --size and --address "
            "of zmqps run, or the address to connect"
        )
    return int(text)


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
        launched = find_task({name: env[name] for name in TORCHRUN if name in env})
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
    task = find_task(env, fqdn() if "JOB_COMPLETION_INDEX" in env else "")
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
