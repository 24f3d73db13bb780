"""Who may do what: three roles, and the requests that each is for.

::

    read ⊂ write ⊂ admin

========  ==========================================================================================
role      may
========  ==========================================================================================
read      read: keys, inboxes, queues, changes, what waits, counters, the nodes and how they are
write     also change what is stored, send, reap, lock, claim, and deal with dead letters and queues
admin     also change who is a node: let in, give another key, remove; restore an empty store
========  ==========================================================================================

A client has the role of the token that it shows; without a file of tokens, that of its certificate.
Unless a file says otherwise, both are ``write``: nobody becomes an administrator by accident. Where
anything goes (``--insecure``) everybody is one.

The file of tokens has a token a line, or a role and a token; the file of roles a role and the
common name of a certificate a line, or ``*`` for all others::

    tokens                                     roles
        admin 5p0Nk1u...                           admin operator
        read  0aKz9Qe...                           read  reports
        Jx81mPq...            (write)              write *
"""

from __future__ import annotations

import enum
from typing import Any, Final

from postroom.errors import AccessDenied, Invalid
from postroom.messaging.bulk_requests import (
    ScanDeadLetters,
    ScanInboxes,
    ScanOutbox,
    ScanReaped,
)
from postroom.messaging.image_requests import (
    AbandonRestore,
    BeginRestore,
    CheckImage,
    EndPart,
    EndRestore,
    ReadRestore,
    RestoreEntries,
    ScanImage,
)
from postroom.messaging.queues.queries import (
    ListQueueMessages,
    ReadQueueMessage,
    ReadQueues,
    ReadQueueStats,
    ReadSchedules,
)
from postroom.messaging.queues.requests import ClaimQueue
from postroom.messaging.recount_requests import (
    ScanBeside,
    ScanCounters,
    ScanInboxIndex,
    ScanPlaces,
)
from postroom.messaging.requests import (
    AwaitQuiet,
    ListDeadLetters,
    ListInboxes,
    ListScheduled,
    Peek,
    ReadCounters,
    ReapQueue,
)
from postroom.messaging.staging_requests import ReadStaging
from postroom.protocol.requests import DescribeNode
from postroom.ranges.bulk_requests import ReadPartitions, ScanAccounting, ScanColumns
from postroom.ranges.nodes import ReadNodes, RebindNode, RetireNode
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    GetForUpdate,
    GetMany,
    Now,
    Protect,
    ReadAccounting,
    ReleaseLocks,
    ReverseScan,
    Scan,
    ScanChanges,
    Unprotect,
)


class Role(enum.Enum):
    """What a client may do. Each may do what those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    @classmethod
    def named(cls, name: str) -> Role:
        """The role of a name.

        Raises:
            Invalid: there is none of this name.
        """
        try:
            return cls(name)
        except ValueError:
            raise Invalid(
                f"there is no role {name[:40]!r}: roles are read, write and admin"
            ) from None


NEEDED: Final[dict[type, Role]] = {
    Get: Role.READ,
    GetMany: Role.READ,
    Scan: Role.READ,
    ReverseScan: Role.READ,
    ScanChanges: Role.READ,
    Now: Role.READ,
    ReadAccounting: Role.READ,
    Protect: Role.READ,
    Unprotect: Role.READ,
    Peek: Role.READ,
    ListInboxes: Role.READ,
    ListDeadLetters: Role.READ,
    ListScheduled: Role.READ,
    ReadCounters: Role.READ,
    AwaitQuiet: Role.READ,
    ReadQueues: Role.READ,
    ReadQueueMessage: Role.READ,
    ListQueueMessages: Role.READ,
    ReadSchedules: Role.READ,
    ReadQueueStats: Role.READ,
    ReadPartitions: Role.READ,
    ScanColumns: Role.READ,
    ScanAccounting: Role.READ,
    ScanInboxes: Role.READ,
    ScanReaped: Role.READ,
    ScanOutbox: Role.READ,
    ScanDeadLetters: Role.READ,
    ScanCounters: Role.READ,
    ScanInboxIndex: Role.READ,
    ScanPlaces: Role.READ,
    ScanBeside: Role.READ,
    ReadStaging: Role.READ,
    ScanImage: Role.READ,
    ReadRestore: Role.READ,
    CheckImage: Role.READ,
    ReadNodes: Role.READ,
    DescribeNode: Role.READ,
    CommitTransaction: Role.WRITE,
    GetForUpdate: Role.WRITE,
    ReapQueue: Role.WRITE,
    ClaimQueue: Role.WRITE,
    ReleaseLocks: Role.WRITE,
    BeginRestore: Role.ADMIN,
    RestoreEntries: Role.ADMIN,
    EndPart: Role.ADMIN,
    EndRestore: Role.ADMIN,
    AbandonRestore: Role.ADMIN,
    RetireNode: Role.ADMIN,
    RebindNode: Role.ADMIN,
}
"""The least role that may ask for it. A request that is not here is refused to everybody."""

_ORDER: Final = (Role.READ, Role.WRITE, Role.ADMIN)

ALLOWED: Final[dict[Role, frozenset[type]]] = {
    role: frozenset(
        kind for kind, needed in NEEDED.items() if _ORDER.index(needed) <= _ORDER.index(role)
    )
    for role in Role
}
"""What each role may ask for."""


def denied(role: Role, kind: type) -> AccessDenied:
    """What a client is told that asks for more than its role allows."""
    needed = NEEDED.get(kind)
    who = "nobody" if needed is None else f'only clients with the role "{needed.value}"'
    return AccessDenied(
        f"this client has the role {role.value!r}, and {who} may ask for {kind.__name__}; nothing "
        "was done: show a token, or a certificate, of that role"
    )


class Roles:
    """Which role each name has: as a file says.

    Args:
        lines: of the file: a role and a name each; blank ones, and those that begin with ``#``, are
            passed over.

    Raises:
        Invalid: a line is none of these; it is told which.
    """

    def __init__(self, lines: list[str]) -> None:
        self._roles: dict[str, Role] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text and not text.startswith("#"):
                name, role = _parsed(number, text)
                self._roles[name] = role

    def of(self, name: str) -> Role | None:
        """The role of a certificate's common name; ``None``: it has none."""
        return self._roles.get(name, self._roles.get("*"))


def _parsed(number: int, text: str) -> tuple[str, Role]:
    role, _, name = text.partition(" ")
    if not name.strip():
        raise Invalid(f"line {number} is not a role and a name: {text[:40]!r}")
    try:
        return name.strip(), Role.named(role)
    except Invalid as error:
        raise Invalid(f"line {number}: {error}") from error


def token_of(line: bytes) -> tuple[bytes, Role]:
    """A line of a file of tokens: a token, or a role and a token.

    Raises:
        Invalid: it is neither.
    """
    parts = line.split()
    if len(parts) == 1:
        return parts[0], Role.WRITE
    if len(parts) == 2:
        return parts[1], Role.named(parts[0].decode(errors="replace"))
    raise Invalid("a line of the tokens is a token, or a role and a token")


__all__: list[Any] = ["ALLOWED", "NEEDED", "Role", "Roles", "denied", "token_of"]
