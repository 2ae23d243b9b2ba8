"""The kernel imports no extension but what is written down here, and that only becomes less."""

from __future__ import annotations

from tests.imports import ROOT
from tests.kernel import EXTENSIONS, LISTS, arrows, is_extension, kernel

#: What modules of the kernel still import of extensions.
STILL = [
    "job/keyspace -> job/tables",
    "job/spec -> job/tables",
    "job/spec -> treatments",
    "node/inquiry -> protocol/messages/resizing",
    "protocol/wire -> protocol/messages/notes",
    "protocol/wire -> protocol/messages/resizing",
    "protocol/wire -> protocol/messages/saving",
    "protocol/wire -> protocol/messages/tracing",
    "server/admission -> treatments",
    "server/builds -> server/saves",
    "server/dense/part -> server/dense/recut",
    "server/dense/part -> server/dense/snapshot",
    "server/dense/part -> server/dense/stale",
    "server/dense/part -> server/replicas/record",
    "server/dense/part -> server/replicas/records",
    "server/dense/part -> treatments",
    "server/leaving -> protocol/messages/resizing",
    "server/machine -> server/relay",
    "server/machine -> server/replicas/replication",
    "server/machine -> server/saves",
    "server/orders -> server/recut",
    "server/orders -> server/relay",
    "server/orders -> server/replicas/replication",
    "server/orders -> server/saves",
    "server/parts -> server/replicas/record",
    "server/shard -> server/tables/rows",
    "server/shard -> treatments",
    "server/tenant -> protocol/figures",
    "server/tenant -> server/replicas/backup",
    "server/tenant -> server/replicas/stream",
]


def test_the_kernel_imports_no_extension_but_these() -> None:
    assert arrows() == STILL, "write down what has become less; nothing may become more"


def test_extensions_are_there_and_the_kernel_is_not_empty() -> None:
    expected = {"server/extensions.py", "worker/extensions.py"}  # where they are entered
    assert {place for place in EXTENSIONS if not (ROOT / "zmqps/core" / place).exists()} <= expected
    assert all((ROOT / path).exists() for path in LISTS)
    assert "zmqps/core/server/ledger.py" in kernel()
    assert not is_extension("zmqps/core/server/machine.py")
    assert is_extension("zmqps/core/server/tables/rows.py")
