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
