"""The same software on all hosts, or who differs, and what to do."""

from __future__ import annotations

from tests.doctor.hosts import VERSIONS, A, B, C, findings, texts, well
from tests.tables import for_each
from zmqps.doctor.software import judge_versions


def found(**changed: str) -> list[str]:
    """Return the rows where the third of three hosts has other versions, but for the one of all that agree."""
    facts = {"host-a": well(1), "host-b": well(2), "host-c": well(3, versions={**VERSIONS, **changed})}
    return texts(judge_versions(findings((A, B, C), facts=facts)))


def test_what_is_the_same_everywhere_is_one_row() -> None:
    assert found() == [
        "all hosts | versions | good | zmqps 0.1.0, Python 3.11.7, libzmq 4.3.5, pyzmq 27.3.0, numpy 2.4.6, "
        "msgpack 1.2.4, numba 0.68.1"
    ]


@for_each(
    "name, version, row",
    [
        ("zmqps", "0.2.0", "host-c | zmqps | wrong | 0.2.0 on host-c; 0.1.0 on host-a and host-b"),
        ("protocol", "4", "host-c | protocol | wrong | 4 on host-c; 3 on host-a and host-b"),
        ("source", "dead", "host-c | source | wrong | dead on host-c; c0ffee on host-a and host-b"),
        ("Python", "3.12.0", "host-c | Python | warning | 3.12.0 on host-c; 3.11.7 on host-a and host-b"),
        ("libzmq", "4.3.4", "host-c | libzmq | warning | 4.3.4 on host-c; 4.3.5 on host-a and host-b"),
        ("numpy", "2.0.0", "host-c | numpy | warning | 2.0.0 on host-c; 2.4.6 on host-a and host-b"),
        ("msgpack", "1.1.0", "host-c | msgpack | warning | 1.1.0 on host-c; 1.2.4 on host-a and host-b"),
    ],
)
def test_a_host_that_differs_is_named(name: str, version: str, row: str) -> None:
    assert found(**{name: version})[0] == row


def test_patch_releases_of_python_are_the_same() -> None:
    assert len(found(Python="3.11.2")) == 1


def test_files_and_protocol_are_not_blamed_where_the_version_already_is() -> None:
    assert len(found(zmqps="0.2.0", protocol="4", source="dead")) == 2


def test_a_host_alone_is_headed_by_its_name() -> None:
    assert texts(judge_versions(findings((A,))))[0].startswith("host-a | versions | good")
