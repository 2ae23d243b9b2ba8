"""Exit codes of the node processes; docs/operations.md explains each."""

OK = 0  #: the job is finished, or the cluster was asked to end
FAILED = 1  #: an error that has no number of its own
USAGE = 2  #: a flag, variable or configuration entry that cannot be used
ADDRESS_IN_USE = 3  #: the endpoint cannot be bound
COORDINATOR_LOST = 4  #: no sign of life from the coordinator
IDLE = 5  #: no worker came within the idle lease
EVICTED = 6  #: the coordinator had presumed this node dead
WORKERS_FAILED = 7  #: a worker process failed, or a worker was lost and nobody came instead
HOST_LOST = 8  #: `zmqps launch`: a host cannot be reached any more
NOT_SAVED = 9  #: a job has ended without its last checkpoint
DRAINED = 75  #: a worker that was asked to go has gone in order, and may be started again elsewhere (EX_TEMPFAIL)
INTERRUPTED = 130  #: Ctrl-C (128 + SIGINT)
TERMINATED = 143  #: SIGTERM (128 + SIGTERM)


def of_cluster(code: int, coordinator: int | None) -> int:
    """Return how a supervisor ends whose coordinator has ended after all else: what failed before, or is not saved."""
    well = code in (OK, IDLE, DRAINED, INTERRUPTED, TERMINATED)
    return NOT_SAVED if well and coordinator == NOT_SAVED else code
