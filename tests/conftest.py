"""What every test gets: quiet maths libraries, hypothesis profiles, and the check that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import os
import signal
from collections.abc import Generator, Iterator

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread per process, so that a test of ten processes loads two cores as ten threads and not as hundred.
# Before numpy is imported: its BLAS reads them once. Child processes inherit them.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import pytest_timeout  # noqa: E402
from zmq.utils import garbage  # noqa: E402

import zmqps  # noqa: E402
import zmqps.aio  # noqa: E402
from tests import found, pace, skips  # noqa: E402
from tests.leaks import Before, left_behind  # noqa: E402

# No deadline: the first example of a test may pay for a compilation. The same examples every time, so that a red run is
# red for what changed; `make test-random` draws others and keeps those that fail.
# Few examples in every run, many where time does not matter: `HYPOTHESIS_PROFILE=thorough make test`.
hypothesis.settings.register_profile("default", deadline=None, max_examples=15, derandomize=True, print_blob=True)
hypothesis.settings.register_profile(
    "random", deadline=None, max_examples=15, database=found.database(), print_blob=True, derandomize=False
)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000, derandomize=False)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or "default"
hypothesis.settings.load_profile(PROFILE)

# --- what is run, and what is said of it ----------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # one of xdist's, which reports to the first process
        if os.environ.get("CI"):
            config.pluginmanager.register(skips.Skips())
        if PROFILE == "random":
            config.pluginmanager.register(found.Found())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is in a file that was named on the command line: all of it runs, whatever is left out by default."""
    paths = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    named = {path.resolve() for path in paths if path.is_file()}
    for item in items if named else []:
        if item.path.resolve() in named:
            item.add_marker("named")


# --- how long tests may take ----------------------------------------------------------------------

# What the package itself waits by default, where a test does not say how long: these are no limits of tests.
for function in (zmqps.connect, zmqps.aio.connect, zmqps.LocalCluster.__init__):
    defaults = inspect.unwrap(function).__kwdefaults__
    defaults["timeout"] = pace.allow(defaults["timeout"])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """Give a test as much more time as this machine needs."""
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=pace.allow(settings.timeout)))


# --- the start of a run ---------------------------------------------------------------------------


def import_tests(config: pytest.Config) -> None:
    """Import the tests in another order than the other processes of xdist, which otherwise all compile the same file.

    In a fresh clone a third of their processor time was that. What cannot be imported is reported when it is collected.
    """
    places = [config.invocation_params.dir / arg.partition("::")[0] for arg in config.args]
    files = sorted(path.relative_to(config.rootpath) for place in places for path in place.rglob("test_*.py"))
    number, count = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    at = len(files) * number // count
    for path in files[at:] + files[:at]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let the garbage collector leave out what stays to the end: the modules and items of all tests."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            import_tests(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


# --- tests that need a GPU ----------------------------------------------------------------------


@functools.cache
def gpu_missing() -> str:
    """Return why the GPU tests cannot run here, or an empty text."""
    try:
        import cupy

        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU"
    except Exception as error:  # CuPy missing, driver missing or too old: each has its own exception
        return f"no usable CuPy: {error}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := gpu_missing()):
        pytest.skip(reason)


# --- leaks --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="session")
def collector_of_pyzmq() -> Iterator[None]:
    """Start pyzmq's own helper of zero-copy sends here, so that no test is blamed for its sockets."""
    key = garbage.gc.store(b"")
    assert garbage.gc._push_socket is not None
    garbage.gc.refs.pop(key, None)
    yield
    garbage.gc.stop()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test after which a process, a ZeroMQ socket or context, or a shared-memory file remains.

    What a fixture of a wider scope holds existed before the test and is that fixture's to clean up.
    """
    before = Before.now()
    yield
    if left := left_behind(before):
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)
