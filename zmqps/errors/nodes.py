"""Errors of nodes and their connections: a node is late, gone, ended or broken, or cannot prove its identity."""

from __future__ import annotations

from zmqps.errors.base import PSError


class DeadlineError(PSError, TimeoutError):
    """A wait ended at its timeout.

    Nothing is known to be lost: a push that timed out may or may not have been applied, and is applied at most once.

    What to do next
    ---------------
    - The text names the node that was awaited. `zmqps status` shows whether it is there and what it waits for,
      `zmqps logs --node NAME` its last lines.
    - If the work just takes that long, give it more time: `timeout=` of the call, or of `zmqps.connect`.
    - If no node answers, `zmqps doctor` finds what keeps the hosts apart.
    - Continue with the next gradients. If you push the same again, they may count twice.
    """

    code = 4
    text = "{operation} timed out after {seconds:.1f} s, waiting for {waiting_for}"
    operation: str
    seconds: float
    waiting_for: str


class ClosedError(PSError, RuntimeError):
    """The object was closed, or its worker has finished.

    What to do next
    ---------------
    - Connect again for more work: a worker cannot be used after `close()` or `finish()`, nor a cluster after it has
      ended.
    - Look for a `with` block that ends too early, or a second thread that closes it.
    """

    code = 5


class ForkedError(ClosedError):
    """A forked child used a worker or cluster of its parent.

    What to do next
    ---------------
    - Connect in the child itself, after the fork.
    - With `multiprocessing` and data loaders use the start method `spawn` or `forkserver`, or use the worker in the
      parent only.
    """

    code = 12
    text = "this {what} belongs to process {pid}, and this process is a fork of it; {advice}"
    what: str
    pid: int
    advice: str


class PeerLostError(PSError, ConnectionError):
    """A node has ended, as its launcher reported, or was silent for longer than the heartbeat timeout.

    It was killed, has crashed, its host is down, or the network is cut; from here these look alike.

    What to do next
    ---------------
    - `zmqps logs --node NAME --since 5m` has its last words, if any; the kernel's log shows whether it ran out
      of memory (`dmesg | grep -i oom`).
    - If it was only busy or stopped, raise `--heartbeat-timeout`.
    - To survive such a loss: `--replicas` for servers, `--restart-workers` for workers (docs/durability.md).
    """

    code = 6
    text = "lost {name}: last sign of life {silent_s:.1f} s ago; {advice}"
    role: str
    name: str
    silent_s: float
    advice: str


class HostLeaderLostError(PSError, ConnectionError):
    """The worker that pushes for its host (``combine="host"``) ended during a push: the step may count or not.

    Another worker of the host pushes from the next call on.

    What to do next
    ---------------
    - Continue: push the next gradients, or `worker.skip()`. If each step must count exactly once, do not use
      `combine="host"`.
    - The log of the worker that the text names says why it ended.
    """

    code = 19
    text = (
        "lost {leader} while it pushed for the workers of this host: the gradients of this step may count or not; push "
        "the next ones, or skip, and another worker of this host will push"
    )
    leader: str


class CoordinatorRestartedError(PSError, ConnectionError):
    """The coordinator that this node had joined has ended, and another one answers at its address.

    What to do next
    ---------------
    - Start the servers again, connect again, and `init` with values that you have saved.
    - Give the coordinator a journal (`--journal DIR`): then it comes back with its members and jobs.
    """

    code = 14
    text = "the coordinator at {address} is a new one: the one that {node} had joined has ended with its jobs; {advice}"
    address: str
    node: str
    advice: str


class EvictedError(PSError, ConnectionError):
    """The coordinator presumed this node dead, and the others continued without it.

    It was silent for longer than the heartbeat timeout, or a restarted process has taken its rank.

    What to do next
    ---------------
    - `worker.rejoin()`, or connect again: the job continues.
    - If it was only slow, find out why (a debugger, a full disk, a loader that keeps the interpreter lock),
      or raise `--heartbeat-timeout`.
    """

    code = 7


class ShutdownError(PSError, ConnectionError):
    """The cluster is ending, so the request will not be answered.

    What to do next
    ---------------
    - Nothing, if you ended the cluster. If not, the coordinator's last lines say what asked for it, or what was lost:
      `zmqps logs coordinator -n 20`.
    """

    code = 8


class NodeFailedError(PSError, RuntimeError):
    """A node that this process had started ended by itself.

    What to do next
    ---------------
    - Its last lines are in the text; the rest is in its log (`zmqps logs --node NAME`).
    - `-9` and `SIGKILL` mostly mean that the host ran out of memory: `dmesg | grep -i oom`.
    """

    code = 9
    text = "{name} ended with {how}; its last lines:\n{tail}"
    name: str
    how: str
    tail: str


class InternalError(PSError, RuntimeError):
    """A node met a defect of zmqps.

    The exception behind it is its ``__cause__`` in the process where it happened, and in that node's log.

    What to do next
    ---------------
    - Please report it, with the log of the node that the text names, which has the traceback.
    - The request may have been carried out or not. Begin the job again from a checkpoint if you cannot be sure of its
      values.
    """

    code = 10
    text = "internal error of {node}: {what}; please report it, with that node's log"
    node: str
    what: str


class IdentityError(PSError, PermissionError):
    """A node did not prove its identity, or requested what its role may not do; nothing has changed.

    What to do next
    ---------------
    - Give the process what the text requires: the job secret (`--job-secret`, `ZMQPS_JOB_SECRET`), keys or a token
      (docs/security.md).
    - If the text says that its role may not do that, connect in one that may: an observer (`observer=True`) only pulls,
      logs and reads the status; docs/security.md has the table.
    - If you do not know that process, a stranger is at the port: the log says where it connected from; use
      keys.
    """

    code = 11


class WrongPeerError(IdentityError):
    """Another program listens at a server's endpoint; nothing was sent there.

    What to do next
    ---------------
    - See what listens there (`ss -ltnp`): another cluster's server, or a forwarded port.
    - If the server has several addresses, choose the one to advertise: `zmqps server --advertise HOST`.
    """

    code = 16
    text = (
        "what listens at the endpoint of {server} is not the server that the coordinator named ({why}); check what "
        "listens there, and which address the server advertises (zmqps server --advertise)"
    )
    server: str
    why: str


class KeyRefusedError(PSError, PermissionError):
    """A node refuses this process's key, or the reverse, so no connection is made.

    What to do next
    ---------------
    - Give this process a token or the directory of keys that belongs to this cluster: `zmqps keys token`, `ZMQPS_KEYS`,
      `connect(..., security=zmqps.Security(token=…))`.
    - If it worked before, the key may have been rotated or revoked: ask the cluster's operator for a new one.
    """

    code = 18
    text = "{address} refuses this {role}: {why}"
    address: str
    role: str
    why: str
