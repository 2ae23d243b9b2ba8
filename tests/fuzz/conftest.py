"""What the tests of real sockets share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from zmq.utils.garbage import gc


@pytest.fixture(autouse=True, scope="session")
def collector_of_pyzmq() -> Iterator[None]:
    """Start pyzmq's own helper of zero-copy sends here, so that no test is blamed for its sockets."""
    key = gc.store(b"")
    assert gc._push_socket is not None
    gc.refs.pop(key, None)
    yield
    gc.stop()
