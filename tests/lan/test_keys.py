"""Keys on a LAN: who has one trains, who has none is told so at once, and the wire tells nobody anything."""

from __future__ import annotations

import pytest

from tests.lan import cluster
from tests.lan.cluster import NAME, PORT, TRAINER, Cluster, check_recording, hand_out, make_keys
from tests.lan.host import Host, Process
from tests.lan.lan import Lan

KEYS = ("--keys", "keys")


def revoke(host: Host, name: str) -> None:
    """Revoke a key where it was made."""
    host.run(["python", "-m", "zmqps", "keys", "revoke", "--keys", "keys", name])


def token(host: Host, *words: str, role: str = "worker") -> str:
    """Return a new token."""
    flags = ["--keys", "keys", "--role", role, "--address", f"tcp://{host.address}:{PORT}", *words]
    return host.run(["python", "-m", "zmqps", "keys", "token", *flags]).split()[-1]


def start(lan: Lan, *options: str) -> Cluster:
    """Start a coordinator on the first host and a server on the second, with keys."""
    a, b = lan.hosts[:2]
    hand_out(a, b)
    return cluster.start(a, [b], *options, trust=KEYS)


def worker(host: Host, secret: str, *words: str) -> Process:
    """Start a worker that has nothing but a token."""
    return host.popen(["python", TRAINER, *words], env={"ZMQPS_TOKEN": secret} if secret else {})


@pytest.mark.lan("capture")
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "insecure"])
def test_a_recording_of_the_wire_holds_values_and_names_only_without_keys(lan: Lan, keyed: bool) -> None:
    a, b, c = lan.hosts[:3]
    words = ["--mb", "1", "--parameter", NAME]
    if keyed:
        make_keys(a)
        secret = token(a)
    nodes = start(lan, "--once") if keyed else cluster.start(a, [b], "--once")
    with lan.capture(c, c.directory / "frames.pcap") as frames:
        trained = worker(c, secret, *words) if keyed else nodes.start_worker(c, *words)
        assert trained.finish() == 0, trained.output
    assert [node.finish(20) for node in nodes.nodes] == [0, 0], nodes.log
    check_recording(frames, readable=not keyed)


@pytest.mark.lan
@pytest.mark.parametrize("who", ["plain", "another cluster's", "revoked"])
def test_a_stranger_is_refused_with_a_line_at_both_ends(lan: Lan, who: str) -> None:
    a, b, c, d = lan.hosts
    make_keys(a)
    secret = token(a, "--name", "gone")
    nodes = start(lan)
    said = len(nodes.coordinator.lines)
    if who == "plain":
        stranger = nodes.start_worker(c)
    elif who == "another cluster's":
        make_keys(d)
        foreign = token(d).replace(d.address, a.address)
        stranger = worker(c, foreign, "--coordinator", nodes.address)
    else:
        revoke(a, "gone")
        hand_out(a, b)
        stranger = worker(c, secret)
    assert stranger.finish(30) == 1, stranger.output
    assert "key" in stranger.output.splitlines()[-1], stranger.output
    assert "KeyRefusedError" in stranger.output
    nodes.coordinator.said(rf"(refuse|warning).*({c.address}|gone|key)", 5)
    others = ("waiting for", "joined")
    refusals = [line for _, line in nodes.coordinator.lines[said:] if not any(text in line for text in others)]
    # once for what is wrong with it; and once more, without its address, where a try ended before that could be read
    tries = [line for line in refusals if "refused a connection that ended at once" not in line]
    assert len(tries) <= 1, nodes.log
    assert 1 <= len(refusals) <= 2, nodes.log


@pytest.mark.lan
def test_a_workers_token_makes_no_server(lan: Lan) -> None:
    a, _, c = lan.hosts[:3]
    make_keys(a)
    secret = token(a)
    nodes = start(lan)
    words = ["server", "--coordinator", nodes.address, "--address", f"tcp://{c.address}:0"]
    impostor = c.zmqps(*words, env={"ZMQPS_TOKEN": secret})
    assert impostor.finish(20) != 0, impostor.output
    assert "server 1" not in nodes.coordinator.output


@pytest.mark.lan
def test_a_key_that_is_revoked_ends_the_live_connection(lan: Lan) -> None:
    a, b, c, d = lan.hosts
    make_keys(a)
    secrets = [token(a, "--name", name) for name in ("going", "staying")]
    nodes = start(lan)
    words = ["--seconds", "25", "--pause", "0.2"]
    going, staying = (worker(host, secret, *words) for host, secret in zip((c, d), secrets, strict=True))
    for process in (going, staying):
        process.said("step 2:", 60)
    revoke(a, "going")
    hand_out(a, b)
    assert going.finish(20) == 1, going.output
    assert staying.finish(60) == 0, staying.output
    nodes.coordinator.said(r"warning.*('going'|lost worker)", 5)
