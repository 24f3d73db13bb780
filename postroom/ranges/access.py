"""The grants: which client may do what on which keys and queues, as a record of the root.

::

    GrantRights, RevokeRights ─▶ root: the record, and a line of the audit log, in one write
                                   │ each node has a replica of the root
    request ─▶ session ─▶ rights of the client, compiled when its stream begins ─┬─▶ goes on
                                                                                 └─▶ AccessDenied

* A client is known by the name of its token, or of its certificate. A *grant* gives a name some
  verbs on the keys with a prefix, or on a queue (:mod:`.rights`).
* Grants add to the role that files give a client: a role is a grant of all that it allows. A client
  of the role ``none`` has its grants alone. Without grants for its name nothing is checked but the
  role, once for each type of request.
* The node that takes a request in checks it, before anything is looked up. A transaction is
  refused as a whole. Other nodes are trusted.
* A change ends the streams of the clients whose rights it changes. They come back at once, with
  the new rights, and everything that waits is checked anew.
* An administrator by grants alone cannot take the last such right away.
* The bounds of ranges are keys. A client is told those among the keys on which it has a verb, and
  no others (:meth:`.Rights.shown`).
* Refusals are counted in the node's memory and told to the root now and then (:mod:`.audit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from postroom.errors import AccessDenied, Invalid, shorten
from postroom.kv import keys
from postroom.limits import (
    CLIENT_NAME_CHARACTERS_MAX,
    GRANTS_BYTES_MAX,
    GRANTS_MAX,
    KEY_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
)
from postroom.ranges import audit
from postroom.ranges.contract import (
    ROOT_ID,
    Command,
    ConcernsRoot,
    Read,
    Role,
    on_everything,
)
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry
from postroom.ranges.rights import EVERY_QUEUE, EVERY_VERB, Granted, Need, Verb, verb_names

ACCESS_KEY: Final = keys.record_key(ROOT_ID, "access")

ClientName: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=CLIENT_NAME_CHARACTERS_MAX)
]
Verbs: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=int(EVERY_VERB))]
"""A set of verbs, as a number: the sum of those of :class:`.Verb`."""
Prefix: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX, title="prefix")]
GrantedQueue: TypeAlias = Annotated[str, msgspec.Meta(max_length=QUEUE_NAME_BYTES_MAX)]


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A grant as it is stored.

    Attributes:
        name: the name of a token or certificate.
        granted: the verbs.
        prefix: the prefix of the keys; empty: every key.
        queue: the queue, and no keys; ``*``: every queue; empty: keys.
    """

    name: str
    granted: int
    prefix: bytes = b""
    queue: str = ""

    @property
    def verbs(self) -> list[str]:
        """Return the names of the verbs."""
        return verb_names(self.granted)


_Target: TypeAlias = tuple[str, bytes, str]
"""The name, prefix and queue of a grant."""


# --- requests -------------------------------------------------------------------------------------


class GrantRights(ConcernsRoot, Command, frozen=True, tag="grant_rights"):
    """A request to give a name some verbs; it answers with all that it has there now.

    Attributes:
        name: the name of a token or certificate.
        granted: the verbs.
        prefix: the prefix of the keys; empty: every key.
        queue: the queue, in place of keys; ``*``: every queue; empty: keys.
        by: the name of the client. The node that serves it sets it, whatever it is.
        is_administrator: whether the client is one by its role. The node sets it.
    """

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    may_end_unknown: ClassVar = True
    is_served_in_restore: ClassVar = False

    name: ClientName
    granted: Verbs
    prefix: Prefix = b""
    queue: GrantedQueue = ""
    by: str = ""
    is_administrator: bool = True

    def needs(self) -> Iterator[Need]:
        """Yield the right to administer what is granted."""
        yield _administered(self.prefix, self.queue)


class RevokeRights(ConcernsRoot, Command, frozen=True, tag="revoke_rights"):
    """A request to take verbs from a name; it answers how many grants it has changed.

    Attributes:
        name: the name of a token or certificate.
        revoked: the verbs.
        prefix: the prefix of one grant of keys; ``None``: none.
        queue: the queue of one grant; ``None``: none. Without both, all grants of the name.
        by, is_administrator: as of ``GrantRights``.
    """

    answer: ClassVar = int
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    may_end_unknown: ClassVar = True
    frees_room: ClassVar = True
    is_served_in_restore: ClassVar = False

    name: ClientName
    revoked: Verbs = int(EVERY_VERB)
    prefix: Prefix | None = None
    queue: GrantedQueue | None = None
    by: str = ""
    is_administrator: bool = True

    def needs(self) -> Iterator[Need]:
        """Yield the right to administer what is revoked."""
        if self.prefix is None and not self.queue:
            yield on_everything(Verb.ADMIN)
        else:
            yield _administered(self.prefix or b"", self.queue or "")


class ReadGrants(ConcernsRoot, Read, frozen=True, tag="read_grants"):
    """A request for all grants on keys with a prefix; without a prefix, for all grants."""

    answer: ClassVar = list[Grant]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN

    prefix: Prefix = b""

    def needs(self) -> Iterator[Need]:
        """Yield the right to administer what is told."""
        yield _administered(self.prefix, "") if self.prefix else on_everything(Verb.ADMIN)


def _administered(prefix: bytes, queue: str) -> Need:
    return Need(Verb.ADMIN, queue=queue) if queue else Need(Verb.ADMIN, (prefix,))


# --- the record -----------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Grant]).decode


class Grants:
    """All grants, by name, as a node knows them.

    Args:
        stored: the record; ``None``: there is none.
    """

    def __init__(self, stored: bytes | None = None) -> None:
        self._by_name: dict[str, list[Granted]] = {}
        for each in [] if stored is None else _decode(stored):
            granted = Granted(each.granted, each.prefix, each.queue)
            self._by_name.setdefault(each.name, []).append(granted)

    def of(self, name: str) -> Iterable[Granted]:
        """Return the grants of a name; none for the empty one, of clients that have no name."""
        return self._by_name.get(name, ())


_BUT_ADMIN: Final = EVERY_VERB & ~Verb.ADMIN
_VERBS: Final = {
    Role.NONE: Verb(0), Role.READ: Verb.READ, Role.WRITE: _BUT_ADMIN, Role.ADMIN: EVERY_VERB
}  # fmt: skip
"""The verbs that each role allows, on every key and every queue."""


def granted_by(role: Role) -> list[Granted]:
    """Return the grants that a role amounts to."""
    return [Granted(_VERBS[role]), Granted(_VERBS[role], queue=EVERY_QUEUE)]


def lacking(what: str) -> AccessDenied:
    """Return the error for a client that lacks a right."""
    return AccessDenied(
        f"this client lacks the right {what}; nothing was done: ask an administrator to grant it "
        "('postroom access grant')"
    )


def register(registry: Registry) -> None:
    """Register the evaluators at the root."""
    registry.commands[GrantRights] = _grant
    registry.commands[RevokeRights] = _revoke
    registry.reads[ReadGrants] = _read


def _read(view: View, request: ReadGrants) -> list[Grant]:
    stored = view.get(ACCESS_KEY)
    every = [] if stored is None else _decode(stored)
    view.steps += len(every)
    prefix = request.prefix
    return [
        each for each in every
        if not prefix or (not each.queue and each.prefix.startswith(prefix))
    ]  # fmt: skip


def _grant(ctx: Evaluation, request: GrantRights) -> int:
    if request.prefix and request.queue:
        raise Invalid(
            "a grant is of keys or of a queue, not of both; nothing was changed: make two grants"
        )
    known = _stored(ctx)
    target = request.name, request.prefix, request.queue
    before = known.get(target, 0)
    after = before | request.granted
    if after != before:
        known[target] = after
        _check_room(known)
        what = _in_words(request.granted, target, "to")
        _write(ctx, known, request.by, audit.GRANTED, what)
    return after


def _check_room(grants: dict[_Target, int]) -> None:
    if len(grants) > GRANTS_MAX:
        raise Invalid(
            f"there are {GRANTS_MAX:,} grants, and no more can be; nothing was changed: revoke "
            "some, or grant a shorter prefix"
        )


def _revoke(ctx: Evaluation, request: RevokeRights) -> int:
    known = _stored(ctx)
    revoked = {
        target: verbs for target, verbs in known.items()
        if verbs & request.revoked and _is_meant(target, request)
    }  # fmt: skip
    if not revoked:
        raise Invalid(
            f"{request.name[:60]!r} has no such grant; nothing was changed: 'postroom access list' "
            "shows all grants"
        )
    left = {target: verbs & ~request.revoked for target, verbs in revoked.items()}
    after = {target: verbs for target, verbs in (known | left).items() if verbs}
    if not request.is_administrator:
        _check_administered(known, after)
    told = [_in_words(verbs & request.revoked, target, "from") for target, verbs in revoked.items()]
    _write(ctx, after, request.by, audit.REVOKED, "; ".join(told))
    return len(revoked)


def _is_meant(target: _Target, request: RevokeRights) -> bool:
    name, prefix, queue = target
    if name != request.name:
        return False
    if request.queue:
        return queue == request.queue
    return request.prefix is None or (prefix == request.prefix and not queue)


def _check_administered(before: dict[_Target, int], after: dict[_Target, int]) -> None:
    """Refuse to take the last right to administer every key, or every queue."""
    for queue in ("", EVERY_QUEUE):
        if _has_administrator(before, queue) and not _has_administrator(after, queue):
            what = "every queue" if queue else "every key"
            raise Invalid(
                f"no other name may administer {what}; nothing was changed: grant 'admin' to "
                "another name first"
            )


def _has_administrator(grants: dict[_Target, int], queue: str) -> bool:
    return any(
        target[1:] == (b"", queue) and verbs & Verb.ADMIN for target, verbs in grants.items()
    )


def _in_words(verbs: int, target: _Target, to: str) -> str:
    name, prefix, queue = target
    if queue:
        what = "every queue" if queue == EVERY_QUEUE else f"the queue {queue[:60]!r}"
    else:
        what = f"keys with {shorten(prefix)}" if prefix else "every key"
    return f"{','.join(verb_names(verbs))} on {what} {to} {name[:60]!r}"


def _stored(ctx: Evaluation) -> dict[_Target, int]:
    stored = ctx.get(ACCESS_KEY)
    found = [] if stored is None else _decode(stored)
    return {(each.name, each.prefix, each.queue): each.granted for each in found}


def _write(ctx: Evaluation, grants: dict[_Target, int], by: str, action: str, what: str) -> None:
    """Write the grants, in order, with a line of the audit log."""
    found = sorted(grants.items())
    packed = _encode([Grant(name, verbs, prefix, queue) for (name, prefix, queue), verbs in found])
    if len(packed) > GRANTS_BYTES_MAX and action == audit.GRANTED:
        raise Invalid(
            f"the grants would take more than {GRANTS_BYTES_MAX:,} bytes; nothing was changed: "
            "revoke some, or grant shorter prefixes"
        )
    ctx.writes[ACCESS_KEY] = packed if grants else None
    ctx.grow(len(packed))
    audit.add_change(ctx, by, action, what)
