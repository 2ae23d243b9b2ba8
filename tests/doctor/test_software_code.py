"""What a launch finds on each host: its directory, its script, and rsync where it copies them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.hosts import A, B, findings, texts, well
from tests.tables import for_each
from zmqps.doctor import host
from zmqps.doctor.facts import Code, CodeFacts, Host
from zmqps.doctor.software import judge_code

FINE = CodeFacts(script="c0ffee", rsync="3.2.7")
CODE = Code(directory="/home/me/project", script="/home/me/project/train.py", here=FINE)
HOSTS = (replace(A, servers=1), replace(B, workers=1))


def found(there: CodeFacts, code: Code = CODE, hosts: tuple[Host, ...] = HOSTS) -> list[str]:
    """Return the rows of two hosts, of which the second one has this."""
    facts = {"host-a": well(1, code=FINE), "host-b": well(2, code=there)}
    return texts(judge_code(findings(hosts, facts=facts, code=code)))


def test_hosts_that_have_all_of_it_are_well() -> None:
    assert found(FINE) == [
        "all hosts | directory | good | /home/me/project is there",
        "all hosts | script | good | /home/me/project/train.py is the same as here",
        "all hosts | rsync | good | 3.2.7",
    ]


@for_each(
    "there, row",
    [
        (
            {"problem": "No such file or directory", "script": ""},
            "host-b | directory | wrong | /home/me/project: No such file or directory",
        ),
        ({"script": ""}, "host-b | script | wrong | there is no /home/me/project/train.py"),
        ({"script": "dead"}, "host-b | script | warning | /home/me/project/train.py is not as it is here"),
        ({"rsync": ""}, "host-b | rsync | good | none; only --sync-code needs it, 3.2.3 or newer"),
    ],
)
def test_what_a_launch_would_fail_by_is_said_of_the_host(there: dict[str, Any], row: str) -> None:
    rows = found(replace(FINE, **there))
    assert row in rows
    assert [text for text in rows if "| wrong |" in text and text != row] == []


def test_a_directory_is_only_warned_of_where_no_script_says_that_something_is_launched() -> None:
    rows = found(CodeFacts(problem="Permission denied"), replace(CODE, script=""))
    assert rows[0] == "host-b | directory | warning | /home/me/project: Permission denied"


def test_what_is_copied_need_not_be_there_but_rsync_at_both_ends() -> None:
    copied = replace(CODE, copied=True)
    nothing = CodeFacts(problem="No such file or directory", rsync="3.1.3")
    assert found(nothing, copied) == ["host-b | rsync | wrong | 3.1.3"]
    without = replace(copied, here=replace(FINE, rsync=""))
    assert found(nothing, without)[0] == "this host | rsync | wrong | none"


def test_copying_a_folder_elsewhere_does_not_make_the_directory() -> None:
    copied = replace(CODE, script="/srv/train.py", copied=True)
    assert found(CodeFacts(problem="gone", rsync="3.3"), copied)[0] == (
        "host-b | directory | wrong | /home/me/project: gone"
    )


def test_a_host_on_which_nothing_is_to_run_needs_none_of_it() -> None:
    assert "wrong" not in str(found(CodeFacts(problem="gone"), hosts=(HOSTS[0], B)))


def test_nothing_is_said_where_nobody_has_asked() -> None:
    assert texts(judge_code(findings())) == []


def test_a_host_says_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    digest = hashlib.sha256(b"pass\n").hexdigest()
    assert host.look("0.1.0", [], directory=str(tmp_path), script=str(script)).code == CodeFacts(script=digest)
    (tmp_path / "rsync").write_text("#!/bin/sh\necho 'rsync  version 3.2.7  protocol version 31'\n")
    (tmp_path / "rsync").chmod(0o755)
    gone = str(tmp_path / "gone")
    expected = CodeFacts(problem="No such file or directory", rsync="3.2.7")
    assert host.look_for_code(gone, f"{gone}/train.py") == expected
    assert host.look_for_code(str(script)).problem == "Not a directory"
