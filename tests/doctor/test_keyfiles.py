"""Keys that others could read, copies that are missing or old, and hosts that cannot encrypt."""

from __future__ import annotations

from dataclasses import replace

from tests.doctor.hosts import A, B, C, findings, texts, well
from tests.tables import for_each
from zmqps.doctor.facts import Host, KeyFile
from zmqps.doctor.keyfiles import OF_NODES, judge
from zmqps.doctor.rows import Row

HERE = replace(A, login="")
FOLDER = KeyFile(path="keys", folder=True, mode=0o700, own=True)
KEY = KeyFile(path="keys/cluster.key", folder=False, mode=0o600, own=True)


def rows(*files: KeyFile) -> list[str]:
    facts = {"host-a": well(1, keys=list(files)), "host-b": well(2)}
    return texts(judge(findings((HERE, B), facts=facts, keys="keys")))


@for_each(
    "files, row",
    [
        ((FOLDER, KEY), "host-a | keys | good | 1 file in keys, which others cannot use"),
        (
            (replace(FOLDER, own=False, roots=True, mode=0o755), replace(KEY, own=False, roots=True, mode=0o440)),
            "host-a | keys | good | 1 file in keys, which others cannot use",
        ),
        (
            (FOLDER, replace(KEY, path="keys/cluster.pub", mode=0o644)),
            "host-a | keys | good | 1 file in keys, which others cannot use",
        ),
        (
            (FOLDER, replace(KEY, own=False, roots=True, mode=0o644)),
            "host-a | keys | wrong | others may use keys/cluster.key (0644)",
        ),
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


@for_each("keys, verdict", [("", "warning"), ("keys", "wrong")])
def test_a_libzmq_that_cannot_encrypt_is_wrong_where_there_are_keys(keys: str, verdict: str) -> None:
    row = next(iter(judge(findings((B,), facts={"host-b": well(2, encrypts=False)}, keys=keys))))
    assert (row.check, row.verdict) == ("encryption", verdict)


# --- copies on several hosts ----------------------------------------------------------------------

COORDINATOR, SERVER, WORKER = replace(HERE, coordinator=True), replace(B, servers=1), replace(C, workers=2)
TO_B = "scp -pr keys me@host-b:keys; not for zmqps launch, which hands keys out"


def copy(*without: str, **digests: str) -> list[KeyFile]:
    """Return a directory of keys less some files; digests are named without the ending of the file."""
    files = [
        replace(KEY, path=f"keys/{name}", digest=digests.get(name.partition(".")[0], "same"))
        for name in (*OF_NODES, "worker.key")
        if name not in without
    ]
    return [FOLDER, *files]


def judged(copies: dict[Host, list[KeyFile]]) -> list[Row]:
    """Return the rows that are not good."""
    facts = {host.name: well(number, keys=files) for number, (host, files) in enumerate(copies.items(), 1)}
    return [row for row in judge(findings([*copies], facts=facts, keys="./keys/")) if row.verdict != "good"]


def test_copies_that_are_whole_and_the_same_are_good_and_workers_need_none() -> None:
    assert judged({COORDINATOR: copy(), SERVER: copy(), WORKER: []}) == []


@for_each(
    "copies, row, advice",
    [
        ({COORDINATOR: copy(), SERVER: [], WORKER: []}, "host-b | keys | wrong | no keys", TO_B),
        ({replace(WORKER, login=""): [], SERVER: []}, "host-c | keys | wrong | no keys", "zmqps keys create keys"),
        ({SERVER: []}, "host-b | keys | wrong | no keys", TO_B),
        (
            {replace(COORDINATOR, login="a"): copy(), SERVER: []},
            "host-b | keys | wrong | no keys",
            "scp -3 -pr a:keys me@host-b:keys; not for zmqps launch, which hands keys out",
        ),
        (
            {COORDINATOR: copy(), replace(SERVER, login="me@fd00::7"): []},
            "host-b | keys | wrong | no keys",
            "scp -pr keys 'me@[fd00::7]:keys'; not for zmqps launch, which hands keys out",
        ),
        (
            {COORDINATOR: copy(), SERVER: copy("cluster.key", "authorized.toml")},
            "host-b | keys | wrong | no cluster.key and authorized.toml in keys",
            "scp -p keys/cluster.key keys/authorized.toml me@host-b:keys/",
        ),
        (
            {COORDINATOR: copy("cluster.key")},
            "host-a | keys | wrong | no cluster.key in keys",
            "take all that zmqps keys create has made",
        ),
        (
            {COORDINATOR: copy(), SERVER: copy(authorized="old")},
            "host-b | keys | warning | authorized.toml is not the same as on host-a",
            "copy it: scp -p keys/authorized.toml me@host-b:keys/",
        ),
        (
            {COORDINATOR: copy(), replace(SERVER, port=2222): copy(authorized="old")},
            "host-b | keys | warning | authorized.toml is not the same as on host-a",
            "copy it: scp -p keys/authorized.toml scp://me@host-b:2222/keys/",
        ),
        (
            {replace(A, servers=1): copy(), replace(SERVER, login="", coordinator=True): copy(authorized="new")},
            "host-a | keys | warning | authorized.toml is not the same as on host-b",
            "copy it: scp -p keys/authorized.toml me@host-a:keys/",
        ),
        (
            {COORDINATOR: copy(), SERVER: copy(cluster="x", authorized="y")},
            "host-b | keys | wrong | cluster.pub is not the same as on host-a",
            "nodes refuse it; remove keys there, and scp -pr keys me@host-b:keys",
        ),
        (
            {COORDINATOR: copy(), WORKER: copy(cluster="x", authorized="y")},
            "host-c | keys | wrong | cluster.pub is not the same as on host-a",
            "nodes refuse it; give its workers a token (zmqps keys token), or worker.key",
        ),
    ],
)
def test_what_a_host_lacks_is_said_with_what_copies_it(
    copies: dict[Host, list[KeyFile]], row: str, advice: str
) -> None:
    found = judged(copies)[0]
    assert (*texts([found]), found.advice) == (row, advice)


def test_an_old_list_of_keys_matters_only_where_nodes_run() -> None:
    assert judged({COORDINATOR: copy(), SERVER: copy(), WORKER: copy(authorized="old")}) == []


def test_what_could_not_be_read_is_no_other_copy() -> None:
    assert judged({COORDINATOR: copy(), SERVER: copy(authorized="", cluster="")}) == []
