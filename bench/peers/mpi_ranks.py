"""All-reduce with MPI, by mpi4py, and the optimizer in every rank: as `bench/peers/gloo.py`, in the same two forms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

try:
    from mpi4py import MPI
except RuntimeError as error:  # the package is there and finds no library
    raise ImportError(f"mpi4py finds no MPI: {error}") from None

from bench.peers.replica import Replica
from bench.peers.serve import Work, serve, work_of

#: Holds where a rank asks what to do: what waits there sleeps, and what waits in MPI would spin in zmqps' turns.
ADDRESS = "ZMQPS_BENCH_MPI"
ENDING = 10.0


class Ranks:
    """As many ranks as a parameter server has workers, and their launcher."""

    def __init__(self, work: Work) -> None:
        self._listener = Listener(backlog=work.workers)
        module = [sys.executable, "-m", "bench.peers.mpi_ranks", *sys.argv[1:]]
        environment = {**os.environ, ADDRESS: str(self._listener.address)}
        self._launcher = subprocess.Popen([*launcher(work.workers), *module], env=environment, stdin=subprocess.DEVNULL)
        threading.Thread(target=self._watch, daemon=True).start()
        self._ranks: list[Connection] = [self._listener.accept() for _ in range(work.workers)]

    def _watch(self) -> None:
        """End with the launcher: ranks that cannot start would be waited for in vain."""
        os._exit(self._launcher.wait())

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step, of every rank."""
        for rank in self._ranks:
            rank.send(count)
        return [seconds for rank in self._ranks for seconds in rank.recv()]

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.close()
        self._listener.close()
        self._launcher.wait(ENDING)


def launcher(number: int) -> list[str]:
    """Return the command that starts so many ranks of what follows it."""
    near = Path(sys.executable).parent / "mpiexec"
    path = str(near) if near.exists() else shutil.which("mpiexec")
    if path is None:
        raise ImportError("mpi4py finds a library, and there is no mpiexec")
    open_mpi = ["--oversubscribe", "--allow-run-as-root"] if "Open MPI" in MPI.Get_library_version() else []
    return [path, "-n", str(number), *open_mpi]


def run(work: Work) -> None:
    """Be a rank, until the launcher's parent closes the connection."""
    world, replica = MPI.COMM_WORLD, Replica(work)
    buffers = [bucket.numpy() for bucket in replica.buckets]

    def step() -> float:
        started = time.perf_counter()
        if len(buffers) == 1:
            world.Allreduce(MPI.IN_PLACE, buffers[0])
        else:
            MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, buffer) for buffer in buffers])
        replica.optimizer.step()
        return time.perf_counter() - started

    with Client(os.environ[ADDRESS]) as parent:
        while True:
            try:
                count = parent.recv()
            except EOFError:
                return
            world.Barrier()
            parent.send([step() for _ in range(count)])


if __name__ == "__main__":
    if ADDRESS in os.environ:
        run(work_of())
    else:
        serve(Ranks)
