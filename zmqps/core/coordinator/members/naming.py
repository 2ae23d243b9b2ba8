"""The node that a name means: its own name, or its role and number."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.errors import AmbiguousNodeError, JobError, listed

#: The most nodes that an error names.
MOST_NAMED = 16


def find_named(name: str, members: Collection[MemberInfo], kind: str = "node") -> MemberInfo:
    """Return the one member that a name means.

    A node's own name, with or without the host after it, ``server-0``, ``server 0``, and for a ``kind`` of node only
    the number mean a node; each may be preceded by its job's name and a slash. The status names nodes by role and
    number, so ``server 0`` means that one even if another has that name.

    Raises `AmbiguousNodeError`: it means several; says how to name each; `JobError`: it means none; names the existing
    ones.
    """
    found = [member for member in members if name in _spellings(member, kind)]
    if len(found) > 1:
        found = [member for member in found if name in _with_job(member, numbered(member))] or found
    if len(found) == 1:
        return found[0]
    if found:
        nodes = [f"{member.title}: '{_prefix(member)}{numbered(member)}'" for member in found]
        raise AmbiguousNodeError(name=name, nodes=listed(nodes, MOST_NAMED))
    here = listed(sorted(f"{_prefix(member)}{member.hello.name}" for member in members), MOST_NAMED)
    raise JobError(f"there is no {kind} {name!r}; here are: {here or 'none'}")


def numbered(member: MemberInfo) -> str:
    """Return a node's name in the status: its role and number."""
    return f"{member.role} {member.rank}"


def _spellings(member: MemberInfo, kind: str) -> Iterator[str]:
    """Yield every name that means a member."""
    own = member.hello.name.partition("@")[0]
    for name in (member.hello.name, own, numbered(member), f"{member.role}-{member.rank}"):
        yield from _with_job(member, name)
    if kind == member.role:
        yield str(member.rank)
        yield own.removeprefix(f"{kind}-")


def _with_job(member: MemberInfo, name: str) -> tuple[str, ...]:
    """Return a name without and with its job's."""
    return (name, f"{member.job}/{name}") if member.job else (name,)


def _prefix(member: MemberInfo) -> str:
    return f"{member.job}/" if member.job else ""
