"""The rights of a client: verbs on keys and queues, and the rights that a request needs.

::

    request ── needs() ──▶ Need ──┐
                                  ├──▶ Rights.lacks ──▶ nothing, or what is missing, in words
    grants of the client ─────────┘

=========  =========================================================================================
verb       allows, on keys with a prefix or on a queue
=========  =========================================================================================
read       to read values, changes, inboxes, sums; messages and statistics of a queue
write      to change and lock values; to make, change and drop a queue, and change its messages
send       to send messages to inboxes
reap       to reap, postpone and bury messages of inboxes, and see them
enqueue    to enqueue
work       to claim messages of a queue, and settle them
admin      to change nodes, ranges, images, and the grants themselves
=========  =========================================================================================

No verb includes another one. A need of several keys may be met by several grants, that of a span by
one. A need is checked with the request alone, before anything is looked up: a refusal is the same
whatever is stored.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from postroom.errors import Invalid, shorten
from postroom.kv.keys import after_prefix

Span: TypeAlias = tuple[bytes, bytes | None]


class Verb(enum.IntFlag):
    """The verbs. Several of them together are a set."""

    READ = 1
    WRITE = 2
    SEND = 4
    REAP = 8
    ENQUEUE = 16
    WORK = 32
    ADMIN = 64

    @classmethod
    def named(cls, names: str) -> Verb:
        """Return the verbs of names that are separated by commas.

        Raises:
            Invalid: one is no name of a verb.
        """
        found = cls(0)
        for name in names.split(","):
            verb = cls.__members__.get(name.strip().upper())
            if verb is None:
                known = ", ".join(verb_names(EVERY_VERB))
                raise Invalid(
                    f"there is no verb {name.strip()[:40]!r}; nothing was changed: verbs are "
                    f"{known}"
                )
            found |= verb
        return found


EVERY_VERB: Final = Verb((1 << len(Verb)) - 1)
EVERY_KEY: Final[Span] = (b"", None)
EVERY_QUEUE: Final = "*"
"""The name that stands for all queues in a grant."""


OF_QUEUES: Final = Verb.ENQUEUE | Verb.WORK
"""The verbs that mean nothing on some keys, but on all together with every queue."""
OF_KEYS: Final = Verb.SEND | Verb.REAP
"""The verbs that mean nothing on a queue, but on every queue together with all keys."""


def verb_names(verbs: int) -> list[str]:
    """Return the names of some verbs."""
    return [verb.name.lower() for verb in Verb if verb & verbs and verb.name]


class Need(NamedTuple):
    """A right that a request needs: one of some verbs, on all that is named.

    Attributes:
        verb: the verb; joined ones, if one of them is enough.
        keys, spans: the keys and spans.
        queue: the name of the queue; empty: none.
    """

    verb: Verb
    keys: Sequence[bytes] = ()
    spans: Sequence[Span] = ()
    queue: str = ""


class Needing(Protocol):
    """A request, as it tells what it needs."""

    def needs(self) -> Iterator[Need]:
        """Yield the rights that it needs."""


class Granted(NamedTuple):
    """Verbs on the keys with a prefix, or on a queue.

    Attributes:
        verbs: the verbs.
        prefix: the prefix; empty: every key.
        queue: the queue, and no keys; empty: keys.
    """

    verbs: int
    prefix: bytes = b""
    queue: str = ""


class Rights:
    """The rights of one client. Those with the same grants are equal.

    For each verb that is asked for, the prefixes are kept in order, without those within others. A
    key has then one of them as prefix if the last one not after it is its prefix.

    Args:
        grants: what is granted to it.
        others: the rights that requests need as well; ``None``: none.
    """

    def __init__(self, grants: Iterable[Granted], others: Rights | None = None) -> None:
        self._grants = frozenset(grants)
        self._others = others
        self._prefixes: dict[Verb, list[bytes]] = {}
        self._queues: dict[Verb, frozenset[str]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rights):
            return NotImplemented
        return self._grants == other._grants and self._others == other._others

    def __hash__(self) -> int:
        return hash((self._grants, self._others))

    def lacks(self, request: Needing) -> str | None:
        """Return the first right that a request needs and this lacks, in words, or ``None``."""
        for need in request.needs():
            missing = self._missing(need)
            if missing is not None:
                return f"{' or '.join(map(repr, verb_names(need.verb)))} on {missing}"
        return None if self._others is None else self._others.lacks(request)

    def may(self, verb: str, queue: str = "") -> bool:
        """Return whether it has a verb on a queue; without a queue, on every key and queue."""
        spans = () if queue else (EVERY_KEY,)
        return self._missing(Need(Verb.named(verb), (), spans, queue or EVERY_QUEUE)) is None

    def shown(self, start: bytes, end: bytes | None) -> Span | None:
        """Return the bounds of a range as the client is told of them; ``None``: it is not told.

        A bound among keys on which the client has no verb becomes the begin of its next prefix.
        These keys seem to belong to one of its own ranges, so that shown ranges leave no gaps::

            bounds   b"" ──── c ── m/ ── m/3 ── m0 ── r ── z/ ── end     prefixes m/, z/
            shown    b"" ──────────m/ ── m/3 ───────────── z/ ── end

        A client of any queue is told all bounds: messages lie in every range, and it has to ask
        each one.
        """
        if self._has_queue:
            return start, end
        first = self._shown_bound(start)
        last = None if end is None else self._shown_bound(end)
        return None if first is None or first == last else (first, last)

    @property
    def _has_queue(self) -> bool:
        """Return whether it has a verb on a queue."""
        has_own = any(each.queue and each.verbs for each in self._grants)
        return has_own and (self._others is None or self._others._has_queue)

    def _shown_bound(self, bound: bytes) -> bytes | None:
        """Return a bound as the client is told of it; ``None``: the end of all keys."""
        prefixes = self._prefixes_of(EVERY_VERB)
        if bound and _of(prefixes, bound) is None:
            at = bisect_right(prefixes, bound)
            if at == len(prefixes):
                return None
            bound = prefixes[at]
        return bound if self._others is None else self._others._shown_bound(bound)

    def _missing(self, need: Need) -> str | None:
        """Return the part of a need that is not met, in words."""
        verb, keys, spans, queue = need
        if keys or spans:
            prefixes = self._prefixes_of(verb)
            for key in keys:
                if _of(prefixes, key) is None:
                    return f"the key {shorten(key)}"
            for start, end in spans:
                prefix = _of(prefixes, start)
                if prefix is None or not _ends_within(end, prefix):
                    return _in_words(start, end)
        return self._missing_queue(verb, queue) if queue else None

    def _prefixes_of(self, verb: Verb) -> list[bytes]:
        """Return the outermost prefixes of the grants with a verb, or one of several."""
        prefixes = self._prefixes.get(verb)
        if prefixes is None:
            prefixes = self._prefixes[verb] = self._outermost(verb)
        return prefixes

    def _outermost(self, verb: Verb) -> list[bytes]:
        found: list[bytes] = []
        for each in sorted(self._of_verb(verb, lambda each: not each.queue), key=_prefix):
            if not found or not each.prefix.startswith(found[-1]):
                found.append(each.prefix)
        return found

    def _missing_queue(self, verb: Verb, queue: str) -> str | None:
        queues = self._queues.get(verb)
        if queues is None:
            granted = self._of_verb(verb, lambda each: bool(each.queue))
            queues = self._queues[verb] = frozenset(each.queue for each in granted)
        if queue in queues or EVERY_QUEUE in queues:
            return None
        return "every queue" if queue == EVERY_QUEUE else f"the queue {queue[:60]!r}"

    def _of_verb(self, verb: Verb, wanted: Callable[[Granted], bool]) -> Iterator[Granted]:
        return (each for each in self._grants if each.verbs & verb and wanted(each))


def _prefix(granted: Granted) -> bytes:
    return granted.prefix


def _of(prefixes: list[bytes], key: bytes) -> bytes | None:
    """Return the one of some outermost prefixes that a key has, or ``None``."""
    at = bisect_right(prefixes, key) - 1
    return prefixes[at] if at >= 0 and key.startswith(prefixes[at]) else None


def _ends_within(end: bytes | None, prefix: bytes) -> bool:
    """Return whether a span that begins with a prefix has no key without it."""
    if not prefix.rstrip(b"\xff"):  # nothing comes after it
        return True
    return end is not None and end <= after_prefix(prefix)


def _in_words(start: bytes, end: bytes | None) -> str:
    if (start, end) == EVERY_KEY:
        return "every key"
    return f"the keys from {shorten(start)} to {'the last' if end is None else shorten(end)}"
