"""Slurm on the hosts of a `Lan`: munged and slurmd on each, slurmctld on the first, as Debian's slurm-wlm has them.

::

    with Lan(3, ssh=False, shared_home=True) as lan:
        slurm = Slurm(lan)
        job = slurm.submit("deploy/slurm/train.sbatch", "python", "train.py")
        print(slurm.ended(job), slurm.log(job))

No systemd, no cgroups, no database. All of it ends with the LAN.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lan.ability import missing
from tests.lan.host import Host, Process
from tests.lan.lan import Lan
from tests.lan.namespaces import LanError
from tests.pace import allow

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
#: What Slurm itself runs on a host; the steps of its jobs are `slurmstepd`.
DAEMONS = re.compile(r"^(\S*munged|\S*slurmctld|\S*slurmd|: slurmscriptd)\b")
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
#: Seconds until all nodes are idle.
START_S = allow(90.0)
COMMAND_S = 60.0
#: Seconds between looks at what only commands of Slurm tell.
LOOK_S = 0.5
#: Each host has its own /run and /tmp.
SOCKET, SPOOL, STATE = "/run/munge.socket", "/tmp/slurmd", "/tmp/slurmctld"
CONFIGURATION = """\
ClusterName=lan
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={socket}
CredType=cred/munge
StateSaveLocation={state}
SlurmdSpoolDir={spool}
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=20
MessageTimeout=60
MinJobAge=3600
SlurmdParameters=config_overrides
{each}
PartitionName=all Nodes={nodes} Default=YES OverSubscribe=NO MaxTime=INFINITE State=UP
"""


_patience = threading.Event()  # which nobody sets


def why_not() -> str:
    """Return why Slurm cannot run here, or an empty text."""
    if reason := missing("hosts"):
        return reason
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)" if absent else ""


class Slurm:
    """Slurm on all hosts of a LAN that share a home directory, from which jobs are submitted.

    Parameters
    ----------
    lan
        The hosts; each is a node.
    cpus
        How many processors Slurm believes each to have.
    """

    def __init__(self, lan: Lan, cpus: int = 2) -> None:
        self._hosts = lan.hosts
        self.home = lan.hosts[0].home
        folder = self.home / "slurm"
        folder.mkdir(mode=0o700)
        self._settings = folder / "slurm.conf"
        names = [host.name for host in lan.hosts]
        # The last one is given away first: then the first node of a heterogeneous job is not that of its first part.
        each = [f"NodeName={name} CPUs={cpus} Weight={len(names) - at}" for at, name in enumerate(names)]
        self._settings.write_text(
            CONFIGURATION.format(
                first=names[0], nodes=",".join(names), each="\n".join(each), socket=SOCKET, spool=SPOOL, state=STATE
            )
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for host in lan.hosts:
            own = ["--pid-file", "/run/munge.pid", "--seed-file", "/run/munge.seed", "--socket", SOCKET]
            host.popen(["munged", "--foreground", "--force", "--num-threads", 1, "--key-file", key, *own])
        self._daemons = [self._start(lan.hosts[0], "slurmctld")]
        self._daemons += [self._start(host, "slurmd") for host in lan.hosts]
        self._wait_for_nodes()

    def _start(self, host: Host, name: str) -> Process:
        return host.popen([name, "-D"], env=self._environment())

    def _environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self._settings)}

    def _wait_for_nodes(self) -> None:
        ends_at = time.monotonic() + START_S
        while True:
            found = self.run("sinfo", "--noheader", "--Node", "--format", "%N %T", check=False)
            if len(re.findall(r" idle\b", found)) == len(self._hosts):
                return
            if time.monotonic() > ends_at:
                said = "\n".join(daemon.output for daemon in self._daemons)
                raise LanError(f"Slurm has not started in {START_S:g} s: {found}\n{said}")
            _patience.wait(LOOK_S)

    # --- what a user types ----------------------------------------------------------------------

    def run(self, *command: Any, env: Mapping[str, str] | None = None, check: bool = True) -> str:
        """Run a command of Slurm on the first host, in the shared home directory; return what it says."""
        more = {**self._environment(), **(env or {})}
        return self._hosts[0].run(command, env=more, check=check, timeout=COMMAND_S)

    def submit(self, *words: Any, **env: str) -> int:
        """Submit a batch script with its arguments; return the job's number."""
        return int(self.run("sbatch", *words, env=env).removeprefix("Submitted batch job "))

    def job(self, number: int) -> dict[str, str]:
        """Return what Slurm says of a job; of a heterogeneous one, of its first part."""
        said = self.run("scontrol", "--oneliner", "show", "job", number).splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def ended(self, number: int, timeout: float) -> tuple[str, str]:
        """Wait for a job's end; return its state and exit code as Slurm writes them, ``("COMPLETED", "0:0")``."""
        ends_at = time.monotonic() + timeout
        while (job := self.job(number))["JobState"] in UNFINISHED:
            if time.monotonic() > ends_at:
                raise LanError(f"job {number} has not ended in {timeout:g} s: {job}\n{self.log(number)}")
            _patience.wait(LOOK_S)
        return job["JobState"], job["ExitCode"]

    def log(self, number: int) -> str:
        """Return what a job has written until now."""
        path = Path(self.job(number)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, number: int, pattern: str, timeout: float, times: int = 1) -> None:
        """Wait until a job has written so many lines in which a regular expression is found."""
        ends_at = time.monotonic() + timeout
        while len(re.findall(pattern, self.log(number))) < times:
            if time.monotonic() > ends_at or self.job(number)["JobState"] not in UNFINISHED:
                raise LanError(f"job {number} has not said {pattern!r}:\n{self.log(number)}")
            _patience.wait(LOOK_S)

    def left(self, timeout: float = 15.0) -> list[str]:
        """Wait until nothing but Slurm itself runs on any host; return what does when the time is over."""
        ends_at = time.monotonic() + timeout
        while True:
            found = [f"{host.name}: {line}" for host in self._hosts for line in host.left() if not DAEMONS.match(line)]
            if not found or time.monotonic() > ends_at:
                return found
            _patience.wait(LOOK_S)
