"""The audit log: who changed the rights of clients, what was refused, and actions on the pages.

::

    03 <root> 05 "audited changes"       →  how many there ever were
    03 <root> 05 "audit change " <slot>  →  an entry; slot = its number % AUDITED_CHANGES_MAX
    03 <root> 05 "audited refusals" ...     the same, for refusals
    03 <root> 05 "audited actions" ...      the same, for actions

There are three rings of records at the root. A new entry takes the place of the oldest one, in the
write that it speaks of. Refusals have a ring of their own: no client can push the changes out.
Nodes count refusals in memory, and tell them now and then (``NoteRefusals``). A process that acts
for its visitors tells what it has done for them, or refused (``NoteActions``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from postroom.kv import keys
from postroom.limits import (
    ACTIONS_TOLD_MAX,
    AUDITED_ACTIONS_MAX,
    AUDITED_CHANGES_MAX,
    AUDITED_CHARACTERS_MAX,
    AUDITED_REFUSALS_MAX,
    CLIENT_NAME_CHARACTERS_MAX,
    REFUSALS_TOLD_MAX,
)
from postroom.ranges.contract import ROOT_ID, Command, ConcernsRoot, Maintenance, Read, Role
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import Count
from postroom.ranges.rights import Verb

GRANTED: Final = "granted"
REVOKED: Final = "revoked"
REFUSED: Final = "refused"
DONE: Final = "done"
FAILED: Final = "failed"


class AuditEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the audit log.

    Attributes:
        at: its timestamp.
        by: the client: the name of its token or certificate, or its host; empty: the store's own
            process.
        action: ``granted``, ``revoked``, ``refused``, ``done`` or ``failed``.
        what: a description.
        times: how often it happened, since the entry of the same kind before.
    """

    at: int
    by: str
    action: str
    what: str
    times: int = 1


class RefusedRequests(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Refused requests of one client that are alike."""

    by: str
    what: str
    times: int


class NoteRefusals(ConcernsRoot, Maintenance, frozen=True, tag="note_refusals"):
    """A request of a node to add refusals to the audit log."""

    answer: ClassVar = None
    since: ClassVar = 2

    refusals: Annotated[list[RefusedRequests], msgspec.Meta(max_length=2 * REFUSALS_TOLD_MAX + 1)]


class NotedAction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An action that a process did for somebody, or did not do.

    Attributes:
        by: who asked for it.
        action: ``done``, ``failed`` or ``refused``.
        what: a description.
        times: how often.
    """

    by: Annotated[str, msgspec.Meta(min_length=1, max_length=CLIENT_NAME_CHARACTERS_MAX)]
    action: Literal["done", "failed", "refused"]
    what: Annotated[str, msgspec.Meta(max_length=AUDITED_CHARACTERS_MAX)]
    times: Annotated[int, msgspec.Meta(ge=1)] = 1


class NoteActions(ConcernsRoot, Command, frozen=True, tag="note_actions"):
    """A request of an administrator to add actions to the audit log.

    Attributes:
        actions: the actions.
        through: the name of the client. The node that serves it sets it, whatever it is.
    """

    answer: ClassVar = None
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    may_end_unknown: ClassVar = True
    frees_room: ClassVar = True  # it needs next to none
    is_served_in_restore: ClassVar = False

    actions: Annotated[list[NotedAction], msgspec.Meta(max_length=ACTIONS_TOLD_MAX)]
    through: str = ""


class ReadAuditLog(ConcernsRoot, Read, frozen=True, tag="read_audit_log"):
    """A request for the last entries of the audit log, the newest at the end."""

    answer: ClassVar = list[AuditEntry]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN

    entries_max: Count


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(AuditEntry).decode
_decode_number: Final = msgspec.msgpack.Decoder(int).decode


class _Ring:
    """A ring of entries.

    Args:
        kind: the kind of the entries, which names the records.
        slots: how many entries are kept.
    """

    def __init__(self, kind: str, slots: int) -> None:
        self._number_key = keys.record_key(ROOT_ID, f"audited {kind}s")
        self._prefix = keys.record_key(ROOT_ID, f"audit {kind} ")
        self._slots = slots

    def add(self, ctx: Evaluation, entries: Iterable[AuditEntry]) -> None:
        packed = ctx.get(self._number_key)
        number = 0 if packed is None else _decode_number(packed)
        for each in entries:
            ctx.writes[self._prefix + keys.u64(number % self._slots)] = _encode(each)
            number += 1
        ctx.writes[self._number_key] = _encode(number)

    def read(self, view: View) -> Iterator[AuditEntry]:
        for _, packed in view.iterate(self._prefix, keys.after_prefix(self._prefix)):
            view.steps += 1
            yield _decode(packed)


_CHANGES: Final = _Ring("change", AUDITED_CHANGES_MAX)
_REFUSALS: Final = _Ring("refusal", AUDITED_REFUSALS_MAX)
_ACTIONS: Final = _Ring("action", AUDITED_ACTIONS_MAX)


def add_change(ctx: Evaluation, by: str, action: str, what: str) -> None:
    """Add a change of rights to the log, in the write that makes it."""
    _CHANGES.add(ctx, [AuditEntry(ctx.timestamp, by, action, what[:AUDITED_CHARACTERS_MAX])])


def register(registry: Registry) -> None:
    """Register the evaluators at the root."""
    registry.commands[NoteRefusals] = _note
    registry.commands[NoteActions] = _note_actions
    registry.reads[ReadAuditLog] = _read


def _note(ctx: Evaluation, request: NoteRefusals) -> None:
    at = ctx.timestamp
    _REFUSALS.add(
        ctx, (AuditEntry(at, each.by, REFUSED, each.what, each.times) for each in request.refusals)
    )


def _note_actions(ctx: Evaluation, request: NoteActions) -> None:
    """Add actions that were done to their ring, and all others to that of refusals."""
    through = f" through {request.through}" if request.through else ""
    added: dict[_Ring, list[AuditEntry]] = {_ACTIONS: [], _REFUSALS: []}
    for each in request.actions:
        ring = _ACTIONS if each.action == DONE else _REFUSALS
        by = each.by + through
        added[ring].append(AuditEntry(ctx.timestamp, by, each.action, each.what, each.times))
    for ring, entries in added.items():
        if entries:
            ring.add(ctx, entries)


def _read(view: View, request: ReadAuditLog) -> list[AuditEntry]:
    every = chain(_CHANGES.read(view), _REFUSALS.read(view), _ACTIONS.read(view))
    entries = sorted(every, key=lambda each: each.at)
    return entries[-request.entries_max :] if request.entries_max else []
