"""``zmqps doctor`` over hosts that are not as they should be, and of a cluster with a server behind a firewall."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lan import cluster
from tests.lan.host import Host
from tests.lan.lan import Lan
from tests.lan.test_addresses import server
from tests.lan.test_keys import make_keys

#: Exit codes (docs/doctor.md), and seconds for a look at three hosts on a busy machine.
FINE, WRONG, PATIENCE = 0, 1, 60
#: Of the wire that is made slow, in Mbit/s and in bytes; what fits into buffers on the way comes on top.
MBIT = 20
SLOW = 1.5 * MBIT * 1e6 / 8

Row = Mapping[str, str]


def look(host: Host, lines: Sequence[str], *options: Any) -> tuple[int, list[Row], dict[str, Any]]:
    """Look at hosts from one of them; return the exit code, the rows that are not good, and all that was printed."""
    (host.home / "hosts.txt").write_text("".join(f"{line}\n" for line in lines))
    doctor = host.zmqps("doctor", "--hosts", "hosts.txt", "--json", *options)
    code = doctor.finish(PATIENCE)
    found = json.loads(doctor.output)
    return code, [row for row in found["rows"] if row["verdict"] != "good"], found


def wrong(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in ("where", "check", "found")) for row in rows if row["verdict"] == "wrong"]


@pytest.mark.lan("block", "limit")
def test_a_blocked_port_and_a_slow_wire_are_named_with_the_host_and_what_to_do() -> None:
    with Lan(3) as lan:
        a, _, c = lan.hosts
        lan.block(c, "5572")
        lan.limit(c, mbit=MBIT)
        lines = [f"{name} servers=1 workers=1" for name in lan.names]
        code, rows, found = look(a, lines, "--port", 5570, "--ports", "5571-5572")
        where = "host-a and host-b → host-c"
        assert (code, found["wrong"]) == (WRONG, True)
        assert wrong(rows) == [(where, "port 5572", f"gets no answer of {c.address}")], rows
        assert [row["advice"] for row in rows if row["where"] == where] == ["a firewall drops it: open 5572 there"]
        slow = {row["where"]: row for row in rows if row["check"] == "bandwidth"}
        for pair in ("host-a ⇄ host-c", "host-b ⇄ host-c"):
            assert "the interface can" in slow[pair]["found"]
            assert "ethtool" in slow[pair]["advice"]
        rates = [rate for rate in found["findings"]["rates"] if c.name in (rate["source"], rate["target"])]
        assert len(rates) >= 4
        assert all(0 < rate["nbytes_per_s"] < SLOW for rate in rates), rates
        lan.unblock(c)
        code, rows, found = look(a, lines, "--port", 5570, "--ports", "5571-5572", "--quick")
        assert (code, found["wrong"], wrong(rows)) == (FINE, False, [])
        assert "5570–5572 free, and reached by all others" in [row["found"] for row in found["rows"]]


@pytest.mark.lan
def test_a_host_without_the_directory_or_the_script_of_a_launch_is_named() -> None:
    with Lan(3) as lan:
        a, b, c = lan.hosts
        for host, text in ((a, "new"), (b, "old")):
            (host.tmp / "project").mkdir()
            (host.tmp / "project" / "train.py").write_text(text)
        words = ["-H", ",".join(lan.names), "--json", "--quick"]
        command = ["--", "python", "train.py"]
        found = a.zmqps("doctor", *words, *command, cwd=Path("/tmp/project"))
        assert found.finish(PATIENCE) == WRONG
        rows = [row for row in json.loads(found.output)["rows"] if row["check"] in ("directory", "script", "rsync")]
        assert [(row["where"], row["check"], row["verdict"]) for row in rows] == [
            (c.name, "directory", "wrong"), (b.name, "script", "warning"), ("all hosts", "rsync", "good"),
        ]  # fmt: skip
        assert "with --sync-code" in rows[0]["advice"]
        copied = a.zmqps("doctor", *words, "--sync-code", *command, cwd=Path("/tmp/project"))
        assert copied.finish(PATIENCE) == FINE, copied.output


@pytest.mark.lan("block")
@pytest.mark.slow
@pytest.mark.parametrize("reject", [False, True], ids=["silent", "rejecting"])
def test_a_server_behind_a_firewall_is_named_by_the_worker_and_by_the_host_that_do_not_reach_it(reject: bool) -> None:
    with Lan(3) as lan:
        a, b, c = lan.hosts
        nodes = cluster.start(a, [])
        server(b, nodes, "--ports", "5571-5571").said("as server 0|joined", 30)
        lan.block(b, "5571", source=c, reject=reject)
        nodes.start_worker(c, "--seconds", 60).said(rf"cannot reach server 0 .*{re.escape(b.address)}:5571", 30)
        code, rows, found = look(a, lan.names, "--coordinator", nodes.address, "--quick")
        why = (
            r"no process listens at that port \(connection refused\)"
            if reject
            else "that host sends no answer: .*firewall.*"
        )
        said = rf"cannot reach server 0 \(server-0, tcp://{re.escape(b.address)}:5571\) for \d+ s \({why}\)"
        at = ("is refused by" if reject else "gets no answer of") + f" {b.address}"
        assert code == WRONG
        told, knocked = sorted(wrong(rows), reverse=True)
        assert told[:2] == ("worker 0 on host-c", "servers")
        assert re.fullmatch(said, told[2]), told
        assert knocked == ("host-c → server 0", "port 5571", at)
        assert ["firewall" in row["advice"] for row in rows if row["check"] == "port 5571"] == [True]
        assert found["findings"]["cluster"]["address"] == nodes.address


@pytest.mark.lan
@pytest.mark.slow
def test_hosts_without_keys_or_with_old_ones_are_named_and_the_commands_mend_that() -> None:
    with Lan(3) as lan:
        a, b, c = lan.hosts
        make_keys(a)
        lines = [f"{a.name} coordinator", f"{b.name} servers=1", "localhost workers=1"]
        code, rows, _ = look(c, lines, "--keys", "keys", "--quick")
        assert (code, wrong(rows)) == (WRONG, [("host-b", "keys", "no keys")])
        [advice] = [row["advice"] for row in rows if row["check"] == "keys"]
        c.run(shlex.split(advice.partition(";")[0]))
        assert (b.home / "keys" / "cluster.key").stat().st_mode & 0o777 == 0o600
        a.run(["python", "-m", "zmqps", "keys", "token", "--keys", "keys"])
        lines = ["localhost coordinator", f"{b.name} servers=1"]
        code, rows, _ = look(a, lines, "--keys", "keys", "--quick")
        [row] = [row for row in rows if row["check"] == "keys"]
        assert (code, row["where"], row["found"]) == (FINE, "host-b", "authorized.toml is not the same as on localhost")
        a.run(shlex.split(row["advice"].partition(": ")[2]))
        code, rows, _ = look(a, lines, "--keys", "keys", "--quick")
        assert (code, [row for row in rows if row["check"] == "keys"]) == (FINE, [])
