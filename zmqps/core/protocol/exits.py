"""Exit codes of the node processes; docs/operations.md explains each."""

OK = 0  #: the job is finished, or the cluster was asked to end
FAILED = 1  #: an error without its own exit code
USAGE = 2  #: a flag, variable or configuration entry that cannot be used
ADDRESS_IN_USE = 3  #: the endpoint cannot be bound
COORDINATOR_LOST = 4  #: no heartbeat from the coordinator
IDLE = 5  #: no worker joined within the idle lease
EVICTED = 6  #: the coordinator had presumed this node dead
WORKERS_FAILED = 7  #: a worker process failed, or a worker was lost and not replaced
HOST_LOST = 8  #: `zmqps launch`: a host cannot be reached any more
NOT_SAVED = 9  #: a job has ended without its last checkpoint
DRAINED = 75  #: a worker was drained, and may be started again elsewhere (EX_TEMPFAIL)
INTERRUPTED = 130  #: Ctrl-C (128 + SIGINT)
TERMINATED = 143  #: SIGTERM (128 + SIGTERM)
SIGNALLED = 128  #: added to the number of the signal that has ended a process


def of_process(code: int) -> int:
    """Return the exit code of a supervisor for a process that ended with ``code``, negative for a signal."""
    if code < 0:
        return SIGNALLED - code
    return code if code < 256 else FAILED  # a code that is not known; the system would make 0 of it


def of_cluster(code: int, coordinator: int | None) -> int:
    """Return the exit code of a supervisor whose coordinator has ended last: an earlier failure, or an unsaved job."""
    well = code in (OK, IDLE, DRAINED, INTERRUPTED, TERMINATED)
    return NOT_SAVED if well and coordinator == NOT_SAVED else code
