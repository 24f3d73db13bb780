"""The rights of clients, as an administrator changes them; in the asyncio form.

:mod:`postroom.ranges.access` says what a grant is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from postroom.client import arguments
from postroom.client.sender import Sender
from postroom.errors import Invalid
from postroom.limits import (
    AUDITED_CHARACTERS_MAX,
    CLIENT_NAME_CHARACTERS_MAX,
    QUEUE_NAME_BYTES_MAX,
)
from postroom.ranges.access import Grant, GrantRights, ReadGrants, RevokeRights, granted_by
from postroom.ranges.audit import AuditEntry, NoteActions, NotedAction, ReadAuditLog
from postroom.ranges.contract import Role
from postroom.ranges.rights import (
    EVERY_QUEUE,
    EVERY_VERB,
    OF_KEYS,
    OF_QUEUES,
    Granted,
    Rights,
    Verb,
    verb_names,
)

NotedWord: TypeAlias = Literal["done", "failed", "refused"]


class AccessCalls:
    """The grants of one store, and its audit log: ``db.access``."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def grant(
        self, name: str, verbs: str, prefix: bytes = b"", *, queue: str | None = None
    ) -> Verb:
        """Give a name some verbs; return all that it has there now.

        Args:
            name: the name of a token, or the common name of a certificate.
            verbs: the names of the verbs, separated by commas.
            prefix: the prefix of the keys; empty: every key.
            queue: a queue, in place of keys; ``*``: every queue.

        Raises:
            Invalid: there is no such verb, or it means nothing there, or there are too many grants;
                nothing was changed.
            Unavailable, CommitUnknown: see ``put``.
            AccessDenied: this client may not administer that.
        """
        request = GrantRights(
            arguments.name(name, "the name of a client", CLIENT_NAME_CHARACTERS_MAX),
            int(Verb.named(verbs)),
            arguments.key(prefix),
            "" if queue is None else _queue(queue),
        )
        _check_meaning(request)
        return Verb(await self._sender.send(request))

    async def revoke(
        self,
        name: str,
        verbs: str | None = None,
        prefix: bytes | None = None,
        *,
        queue: str | None = None,
    ) -> int:
        """Take verbs from a name; return how many grants were changed.

        Args:
            name: the name of a token, or the common name of a certificate.
            verbs: the names of the verbs, separated by commas; ``None``: all.
            prefix: the prefix of one grant of keys.
            queue: the queue of one grant. Without both, all grants of the name.

        Raises:
            Invalid: the name has no such grant, or it would leave no administrator; nothing was
                changed.
            Unavailable, CommitUnknown: see ``put``.
            AccessDenied: this client may not administer that.
        """
        request = RevokeRights(
            arguments.name(name, "the name of a client", CLIENT_NAME_CHARACTERS_MAX),
            int(EVERY_VERB if verbs is None else Verb.named(verbs)),
            None if prefix is None else arguments.key(prefix),
            None if queue is None else _queue(queue),
        )
        changed: int = await self._sender.send(request)
        return changed

    async def grants(self, prefix: bytes = b"") -> list[Grant]:
        """Return the grants of keys with a prefix; without a prefix all grants, in order of names.

        Args:
            prefix: the prefix.

        Raises:
            AccessDenied: this client may not administer that.
        """
        found: list[Grant] = await self._sender.send(ReadGrants(arguments.key(prefix)))
        return found

    async def audit_log(self, *, limit: int = 100) -> list[AuditEntry]:
        """Return the last entries of the audit log, the newest at the end.

        Args:
            limit: how many at most.

        Raises:
            AccessDenied: this client is no administrator.
        """
        request = ReadAuditLog(arguments.count(limit, "limit"))
        found: list[AuditEntry] = await self._sender.send(request)
        return found

    # --- for processes that act for several clients

    @staticmethod
    def rights(role: str, grants: Iterable[Grant]) -> Rights:
        """Return the rights of a client with a role and some grants; ``as_client`` takes them.

        Args:
            role: ``none``, ``read``, ``write`` or ``admin``.
            grants: the grants of its name.

        Raises:
            Invalid: there is no such role.
        """
        own = (Granted(each.granted, each.prefix, each.queue) for each in grants)
        return Rights([*granted_by(Role.named(role)), *own])

    async def note(self, actions: Sequence[tuple[str, NotedWord, str, int]]) -> None:
        """Add actions that this process did for others, or refused, to the audit log.

        Args:
            actions: who asked; ``done``, ``failed`` or ``refused``; what; how often.

        Raises:
            Unavailable, CommitUnknown: see ``put``.
            AccessDenied: this client is no administrator.
        """
        noted = [
            NotedAction(by[:CLIENT_NAME_CHARACTERS_MAX], word, what[:AUDITED_CHARACTERS_MAX], times)
            for by, word, what, times in actions
        ]
        await self._sender.send(NoteActions(noted))


def _queue(name: str) -> str:
    return arguments.name(name, "the name of a queue", QUEUE_NAME_BYTES_MAX)


def _check_meaning(request: GrantRights) -> None:
    """Check that each verb of a grant allows something.

    Raises:
        Invalid: one does not.
    """
    if request.prefix:
        useless, there, elsewhere = OF_QUEUES, "keys", "a queue"
    elif request.queue and request.queue != EVERY_QUEUE:
        useless, there, elsewhere = OF_KEYS, "a queue", "keys"
    else:
        return
    if named := verb_names(request.granted & useless):
        raise Invalid(
            f"{' and '.join(named)} on {there} would allow nothing; nothing was changed: grant it "
            f"on {elsewhere}"
        )
