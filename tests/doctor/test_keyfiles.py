"""Keys that others could read, and hosts that cannot encrypt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.doctor.hosts import A, B, findings, texts, well
from zmqps.doctor.facts import KeyFile
from zmqps.doctor.keyfiles import judge

HERE = replace(A, login="")
FOLDER = KeyFile(path="keys", folder=True, mode=0o700, own=True)
KEY = KeyFile(path="keys/cluster.key", folder=False, mode=0o600, own=True)


def rows(*files: KeyFile) -> list[str]:
    facts = {"host-a": well(1, keys=list(files)), "host-b": well(2)}
    return texts(judge(findings((HERE, B), facts=facts, keys="keys")))


@pytest.mark.parametrize(
    ("files", "row"),
    [
        ((FOLDER, KEY), "host-a | keys | good | 1 file in keys, for this user alone"),
        ((), "host-a | keys | wrong | no keys"),
        ((replace(FOLDER, mode=0o755), KEY), "host-a | keys | wrong | others may use keys (0755)"),
        ((FOLDER, replace(KEY, mode=0o640)), "host-a | keys | wrong | others may use keys/cluster.key (0640)"),
        ((FOLDER, replace(KEY, own=False)), "host-a | keys | wrong | keys/cluster.key belongs to another user"),
    ],
)
def test_keys_are_one_users(files: tuple[KeyFile, ...], row: str) -> None:
    assert rows(*files) == [row]


def test_the_advice_is_a_command() -> None:
    facts = {"host-a": well(1, keys=[replace(FOLDER, mode=0o755), replace(KEY, mode=0o644)])}
    found = judge(findings((HERE,), facts=facts, keys="keys"))
    assert [row.advice for row in found] == ["chmod 700 keys", "chmod 600 keys/cluster.key"]


@pytest.mark.parametrize(("keys", "verdict"), [("", "warning"), ("keys", "wrong")])
def test_a_libzmq_that_cannot_encrypt_is_wrong_where_there_are_keys(keys: str, verdict: str) -> None:
    row = next(iter(judge(findings((B,), facts={"host-b": well(2, encrypts=False)}, keys=keys))))
    assert (row.check, row.verdict) == ("encryption", verdict)
