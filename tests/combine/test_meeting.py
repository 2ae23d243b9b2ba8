"""Where processes of one user and host meet: the first listens, what was left behind is in nobody's way."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from zmqps.combine import meeting
from zmqps.errors import ConfigurationError, DeadlineError


@pytest.fixture(autouse=True)
def own_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


def leave(*met: meeting.Met) -> None:
    for one in met:
        one.connection.close()
        if one.listener is not None:
            one.listener.close()


def test_the_first_listens_and_others_connect_to_it() -> None:
    path = meeting.path_of("job", "1")
    first, second = meeting.meet(path, 1.0), meeting.meet(path, 1.0)
    assert first.listener is not None
    assert second.listener is None
    assert first.file == second.file
    own, _ = first.listener.accept()
    accepted, _ = first.listener.accept()
    meeting.check_peer_user(accepted)
    second.connection.send(b"hello")
    accepted.settimeout(5)
    assert accepted.recv(16) == b"hello"
    for one in (own, accepted):
        one.close()
    meeting.end(first.listener, path, first.file)
    assert not path.exists()
    leave(first, second)


def test_other_facts_are_other_places() -> None:
    assert meeting.path_of("job", "1") != meeting.path_of("job", "2")
    assert meeting.path_of("job", "1") == meeting.path_of("job", "1")


def test_a_socket_that_a_killed_process_has_left_is_replaced() -> None:
    path = meeting.path_of("job")
    left = meeting.meet(path, 1.0)
    leave(left)
    assert path.exists()
    again = meeting.meet(path, 1.0)
    assert again.listener is not None
    leave(again)


def test_one_that_does_not_answer_any_more_is_passed_over_and_removes_nothing_when_it_wakes() -> None:
    path = meeting.path_of("job")
    silent = meeting.meet(path, 1.0)
    heir = meeting.meet(path, 1.0, stale=silent.file)
    assert heir.listener is not None
    assert silent.listener is not None
    meeting.end(silent.listener, path, silent.file)
    follower = meeting.meet(path, 1.0, stale=silent.file)
    assert follower.listener is None
    leave(silent, heir, follower)


def test_the_directory_is_the_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    path = meeting.directory()
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="not a directory that this user alone can read"):
        meeting.path_of("job")
    path.chmod(0o700)
    path.rmdir()
    path.symlink_to("/tmp")
    with pytest.raises(ConfigurationError, match="not a directory that this user alone can read"):
        meeting.path_of("job")


def test_a_path_that_is_too_long_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * 90)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(ConfigurationError, match="set XDG_RUNTIME_DIR or TMPDIR to a shorter directory"):
        meeting.path_of("job")


def test_a_process_that_is_choosing_is_waited_for_until_the_timeout() -> None:
    path = meeting.path_of("job")
    with meeting._choosing(path.parent, 1.0), pytest.raises(DeadlineError, match="the workers of this host"):
        meeting.meet(path, 0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_users_process_is_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        meeting.check_peer_user(ours)
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigurationError, match="is a process of user 0"):
                meeting.check_peer_user(ours)
        finally:
            os.seteuid(0)
