"""The kernel imports no extension but what is written down here, and that only becomes less."""

from __future__ import annotations

from tests.imports import ROOT
from tests.kernel import EXTENSIONS, LISTS, arrows, is_extension, kernel

#: What modules of the kernel still import of extensions.
STILL = [
    "coordinator/jobs -> coordinator/members/erasures",
    "coordinator/jobs -> coordinator/saving/checkpoints",
    "coordinator/machine -> coordinator/members/erasures",
    "coordinator/machine -> coordinator/placement/drains",
    "coordinator/machine -> coordinator/placement/fallback",
    "coordinator/machine -> coordinator/placement/fleet",
    "coordinator/machine -> coordinator/placement/holders",
    "coordinator/machine -> coordinator/placement/scales",
    "coordinator/machine -> coordinator/remembered",
    "coordinator/machine -> coordinator/saving/checkpoints",
    "coordinator/machine -> coordinator/saving/files",
    "coordinator/machine -> coordinator/saving/making",
    "coordinator/machine -> coordinator/watching/notes",
    "coordinator/machine -> coordinator/watching/probes",
    "coordinator/machine -> coordinator/watching/status",
    "coordinator/machine -> coordinator/watching/traces",
    "coordinator/machine -> coordinator/watching/watching",
    "coordinator/members/places -> job/data",
    "coordinator/run -> coordinator/placement/fallback",
    "coordinator/run -> coordinator/placement/fleet",
    "coordinator/run -> coordinator/placement/replication",
    "coordinator/run -> coordinator/placement/views",
    "coordinator/run -> coordinator/training/data",
    "job/keyspace -> job/tables",
    "job/spec -> job/tables",
    "job/spec -> treatments",
    "node/inquiry -> protocol/messages/resizing",
    "node/member -> node/tracing",
    "protocol/wire -> protocol/messages/notes",
    "protocol/wire -> protocol/messages/resizing",
    "protocol/wire -> protocol/messages/saving",
    "protocol/wire -> protocol/messages/tracing",
    "worker/connections/link -> worker/layout/sent",
    "worker/connections/link -> worker/rows",
    "worker/operations -> job/data",
    "worker/operations -> treatments",
    "worker/pace -> worker/rows",
    "worker/session -> worker/layout/moves",
    "worker/session -> worker/notebook",
    "worker/session -> worker/notes",
    "worker/session -> worker/statistics",
    "worker/transfers -> worker/early",
    "worker/transfers -> worker/layout/moves",
    "worker/transfers -> worker/layout/recuts",
    "worker/transfers -> worker/layout/rollbacks",
    "worker/transfers -> worker/statistics",
]


def test_the_kernel_imports_no_extension_but_these() -> None:
    assert arrows() == STILL, "write down what has become less; nothing may become more"


def test_extensions_are_there_and_the_kernel_is_not_empty() -> None:
    expected = {"coordinator/extensions.py", "server/extensions.py", "worker/extensions.py"}  # where they are entered
    assert {place for place in EXTENSIONS if not (ROOT / "zmqps/core" / place).exists()} <= expected
    assert all((ROOT / path).exists() for path in LISTS)
    assert "zmqps/core/server/ledger.py" in kernel()
    assert not is_extension("zmqps/core/server/machine.py")
    assert is_extension("zmqps/core/server/tables/rows.py")
