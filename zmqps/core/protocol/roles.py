"""What the key of a connection allows: the transport says whose key it is, and the machines decide by that."""

from __future__ import annotations

from typing import NamedTuple

from zmqps.errors import IdentityError, KeyRefusedError

#: Role of a key -> the roles of those who may join with it. A node's is the operator's as well.
ALLOWS = {
    "node": ("server", "worker", "observer"),
    "worker": ("worker", "observer"),
    "observer": ("observer",),
}
KEY_ROLES = tuple(ALLOWS)


class KeyHolder(NamedTuple):
    """Whose key a connection was opened with: keys of one name are the same one's, a new one follows the old one."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"the {self.role}'s key {self.name!r}"


def check_role(holder: KeyHolder | None, role: str, *, keyed: bool) -> None:
    """Raise `IdentityError` unless a key allows to join in a role; ``keyed``: nobody joins without a key."""
    if holder is None:
        if keyed:
            raise IdentityError(f"this cluster has keys, and a {role} shows none; nothing has changed")
        return
    if role not in ALLOWS.get(holder.role, ()):
        raise IdentityError(
            f"{holder} does not allow to join as a {role}; whoever runs the cluster makes one that does: zmqps keys"
        )


def check_same(before: KeyHolder | None, holder: KeyHolder | None, title: str) -> None:
    """Raise `IdentityError` if somebody who has joined with one key comes back with another one's."""
    if before != holder:
        raise IdentityError(f"{title} has joined with {before or 'no key'}; this Hello came with {holder or 'none'}")


def check_operator(holder: KeyHolder | None, what: str, *, keyed: bool) -> None:
    """Raise `IdentityError` unless a key allows what only who runs the cluster may do."""
    if keyed and (holder is None or holder.role != "node"):
        raise IdentityError(
            f"this cluster has keys, and {holder or 'who shows none'} does not allow to {what}; that takes a node's: "
            "run it with --keys DIR where the cluster's nodes have theirs"
        )


def shut_out(role: str, why: str = "its key was revoked, or has expired") -> KeyRefusedError:
    """Return what somebody is told whose key opens nothing any more."""
    return KeyRefusedError(address="the cluster", role=role, why=why)
