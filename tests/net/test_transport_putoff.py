"""What waits until all that has come was taken, and not for ever where others send without an end."""

from __future__ import annotations

from zmqps.net.transport import HEARD_S, PutOff


def test_it_waits_until_all_was_taken_and_is_done_once() -> None:
    put_off = PutOff()
    assert not put_off.due
    for _ in range(3):
        put_off.add(b"a", 1.0)
    put_off.add(b"b", 1.5)
    assert put_off.due
    assert put_off.take(1.0 + HEARD_S - 0.1, all_taken=False) == []
    assert put_off.take(1.5, all_taken=True) == [b"a", b"b"]
    assert not put_off.due
    assert put_off.take(9.0, all_taken=True) == []


def test_while_others_send_without_an_end_it_waits_for_a_second_from_when_it_was_first_asked_for() -> None:
    put_off = PutOff()
    put_off.add(b"a", 1.0)
    put_off.add(b"b", 1.5)
    put_off.add(b"a", 1.9)
    assert put_off.take(1.0 + HEARD_S, all_taken=False) == [b"a"]
    put_off.add(b"a", 2.1)
    assert put_off.take(1.5 + HEARD_S, all_taken=False) == [b"b"]
    assert put_off.take(3.0, all_taken=True) == [b"a"]
