"""The definitions of queues: made, changed and dropped like any data, in transactions.

::

    CreateQueue ─▶ definition ── UpdateQueue ─▶ definition
                       └──────── DropQueue ──▶ dropped: emptied in steps, then gone

Settings are checked before anything is stored, each by its rule and then all together. An error
names what is wrong, and nothing happens. The messages of a queue lie under its number. A queue that
is dropped and made again has another number, so nothing of the old one can turn up in it.

The leaseholder has the definitions in memory. A proposal that changes some reads the store from
then on, and thus sees them as it has left them (:class:`Directory`).

They are records of the root, which alone changes them. Each proposal that does tells, in one more
record, a version and the names that have changed; other ranges hear of that (:mod:`.news`).

A range that has not learned of a drop yet still takes messages for the queue. If another one had
its name by then, these would be lost. In a store of several ranges, a name is therefore free again
once all ranges have learned of the drop (:mod:`.dropping`)::

    dropped ── emptied at the root ──┬─▶ forgotten
       └────── all ranges know it ───┘ its name is free
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from postroom.errors import Invalid, NoSuchQueue, Unavailable
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.kv.engine import Reader
from postroom.limits import QUEUE_BATCH_SIZE_MAX, QUEUE_CACHE_SIZE_MAX, QUEUE_SETTING_SECONDS_MAX
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DroppedQueue,
    DropQueue,
    QueueDefinition,
    QueueSettings,
    UpdateQueue,
)
from postroom.messaging.queues.records import UNDECODABLE, QueueDamaged, damaged, index_in_use
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation

NUMBER_RECORD: Final = "queues"
DEFINITIONS_RECORD: Final = "definitions"
VERSION_KEY: Final = keys.record_key(ROOT_ID, DEFINITIONS_RECORD)
"""The key of the root's record of changes; other ranges have one of what they have learned."""
NAMES_TOLD: Final = 1000
"""The number of changed queues in a proposal above which none is named, and all are read again."""
LEASE_SECONDS_MIN: Final = 0.05
_NUMBER_BYTES: Final = 4
ORDERS: Final = ("none", "group")
DUPLICATES: Final = ("ignore", "error", "replace")

_encode = msgspec.msgpack.encode
_definitions: Final = msgspec.msgpack.Decoder(QueueDefinition)
_dropped: Final = msgspec.msgpack.Decoder(DroppedQueue)
NOBODY_KNOWS: Final = QueueSettings()
"""The settings of a queue whose definition cannot be read."""
_FIELDS: Final = QueueSettings.__struct_fields__


# --- the rules ------------------------------------------------------------------------------------


def _number(least: float, most: float, *, above: bool = False) -> Callable[[Any], str | None]:
    """Return a rule for a number from ``least`` (or above it) to ``most``.

    A rule returns what a value must be, or `None` if it is that.
    """

    def rule(value: Any) -> str | None:
        is_number = type(value) in (int, float) and math.isfinite(value)
        if is_number and least <= value <= most and not (above and value == least):
            return None
        return f"a number {'above' if above else 'from'} {least:g}, up to {most:,.10g}"

    return rule


def _whole(least: int, most: int) -> Callable[[Any], str | None]:
    def rule(value: Any) -> str | None:
        if type(value) is int and least <= value <= most:
            return None
        return f"a whole number from {least} to {most}"

    return rule


def _optional(rule: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    def optional(value: Any) -> str | None:
        wanted = None if value is None else rule(value)
        return None if wanted is None else f"{wanted}, or None"

    return optional


def _one_of(*names: str) -> Callable[[Any], str | None]:
    def rule(value: Any) -> str | None:
        return None if value in names else "one of " + ", ".join(map(repr, names))

    return rule


def _boolean(value: Any) -> str | None:
    return None if type(value) is bool else "True or False"


def _name(value: Any) -> str | None:
    return None if type(value) is str and 0 < len(value.encode()) <= 256 else "the name of a queue"


_RULES: Final[dict[str, Callable[[Any], str | None]]] = {
    "ack_wait": _number(LEASE_SECONDS_MIN, QUEUE_SETTING_SECONDS_MAX),
    "min_backoff": _optional(_number(0, QUEUE_SETTING_SECONDS_MAX)),
    "max_backoff": _optional(_number(0, QUEUE_SETTING_SECONDS_MAX)),
    "max_attempts": _optional(_whole(1, 1_000_000)),
    "purge_after": _number(0, 100 * QUEUE_SETTING_SECONDS_MAX),
    "archive": _boolean,
    "batch_size": _whole(1, QUEUE_BATCH_SIZE_MAX),
    "cache_size": _whole(1, QUEUE_CACHE_SIZE_MAX),
    "poller_interval": _number(LEASE_SECONDS_MIN, QUEUE_SETTING_SECONDS_MAX),
    "max_rate": _optional(_number(0, 1e9, above=True)),
    "max_concurrency": _optional(_whole(1, 1_000_000_000)),
    "order": _one_of(*ORDERS),
    "on_duplicate": _one_of(*DUPLICATES),
    "dead_letter_queue": _optional(_name),
    "group_max_rate": _optional(_number(0, 1e9, above=True)),
    "group_max_concurrency": _optional(_whole(1, 1_000_000_000)),
}
"""The rules by setting; each returns what the value must be, or ``None`` if it is that."""


def check_settings(name: str, settings: QueueSettings) -> None:
    """Check the settings of a queue.

    Raises:
        Invalid: it names each setting that is wrong, and what it must be.
    """
    wrong = [
        f"{setting} is {wanted}, not {getattr(settings, setting)!r}"
        for setting, rule in _RULES.items()
        if (wanted := rule(getattr(settings, setting))) is not None
    ]
    if not wrong:
        wrong = _wrong_together(name, settings)
    if wrong:
        raise Invalid(f"the queue {name!r} was not changed: " + "; ".join(wrong))


def _wrong_together(name: str, settings: QueueSettings) -> list[str]:
    wrong = []
    least, most = settings.min_backoff, settings.max_backoff
    if least is not None and most is not None and least > most:
        wrong.append(f"min_backoff ({least:g}) is above max_backoff ({most:g})")
    if settings.dead_letter_queue == name:
        wrong.append("dead_letter_queue is another queue, or None: dead letters of its own")
    return wrong


def changed_settings(name: str, settings: QueueSettings, changes: dict[str, Any]) -> QueueSettings:
    """Return ``settings`` with ``changes``, checked.

    Raises:
        Invalid: one of them is no setting, or is wrong.
    """
    unknown = [setting for setting in changes if setting not in _FIELDS]
    if unknown:
        raise Invalid(
            f"the queue {name!r} was not changed: there is no setting {', '.join(unknown)}; "
            f"settings are {', '.join(_FIELDS)}"
        )
    changed = msgspec.structs.replace(settings, **changes)
    check_settings(name, changed)
    return changed


def retention(settings: QueueSettings, kept: int) -> int:
    """Return how long ended messages are kept, in timestamp units.

    Args:
        settings: the settings of the queue.
        kept: how long the past can be read.
    """
    return max(from_seconds(settings.purge_after), kept)


# --- stored definitions ---------------------------------------------------------------------------


class Changed:
    """A mark in an evaluation's scratch: it has changed definitions, or tried to."""


def no_such_queue(name: str) -> NoSuchQueue:
    """Return the error for a request that names a queue that does not exist."""
    return NoSuchQueue(
        f"there is no queue {name!r}; nothing was changed: make it with create_queue(), or look at "
        "queues() for those there are",
        name,
    )


class _Version(msgspec.Struct, frozen=True, array_like=True):
    """The record of a version.

    Attributes:
        version: the version, which each proposal that changes definitions raises by one.
        names: the names of the queues that it has changed; ``None``: there are many.
    """

    version: int = 0
    names: list[str] | None = []


_versions: Final = msgspec.msgpack.Decoder(_Version)


def decode_version(stored: bytes | None) -> tuple[int, list[str] | None]:
    """Return a version, and which queues have changed with it; ``None``: any may have."""
    known = _Version() if stored is None else _versions.decode(stored)
    return known.version, known.names


def encode_version(version: int) -> bytes:
    """Return the record of a range that has learned a version."""
    return _encode(_Version(version))


def read_past_cache(reader: Reader | Evaluation, key: bytes) -> bytes | None:
    """Return the value of a key of another range, of which the cache of the range does not hear."""
    return next((stored for _, stored in reader.iterate(key, key + b"\x00")), None)


class Definitions:
    """The stored definitions, which are records of the root.

    Args:
        range_id: the id of the range that reads or changes them.
    """

    def __init__(self, range_id: int) -> None:
        self._range_id = range_id
        self._prefix = keys.queue_definitions_prefix(ROOT_ID)
        self._own_prefix = keys.queue_definitions_prefix(range_id)
        self._dropped = keys.dropped_queues_prefix(ROOT_ID)
        self._number = keys.record_key(ROOT_ID, NUMBER_RECORD)

    def version(self, reader: Reader) -> int:
        """Return the version of the definitions, as applied on this node."""
        return decode_version(read_past_cache(reader, VERSION_KEY))[0]

    def highest(self, reader: Reader) -> int:
        """Return the highest number that a queue has had, as applied on this node."""
        return int.from_bytes(read_past_cache(reader, self._number) or b"", "big")

    def read_all(
        self, reader: Reader | Evaluation
    ) -> tuple[list[QueueDefinition], list[QueueDamaged]]:
        """Return all definitions, and the errors of those that cannot be read.

        Dropped queues that are not empty yet are included; for a damaged one of these its number is
        enough.
        """
        known, unreadable = [], []
        for key, packed in reader.iterate(self._prefix, keys.after_prefix(self._prefix)):
            try:
                known.append(self._decode(key, packed))
            except QueueDamaged as error:
                if not key.startswith(self._dropped):
                    unreadable.append(error)
                    continue
                number = int.from_bytes(key[len(self._dropped) :], "big")
                known.append(QueueDefinition(error.queue, number, 0, NOBODY_KNOWS, dropped=True))
        return known, unreadable

    def _decode(self, key: bytes, packed: bytes) -> QueueDefinition:
        """Return the definition that is stored at ``key``.

        Raises:
            QueueDamaged: it is no definition, or that of another queue.
        """
        tail = key[len(self._prefix) :]
        try:
            definition = _definitions.decode(packed)
        except UNDECODABLE as error:
            raise damaged(_name_in(tail), "its definition", error) from error
        if self.key_tail(definition) != tail:
            raise damaged(_name_in(tail), "its definition", f"it is that of {definition.name!r}")
        return definition

    def iterate(self, stored: Reader, lower: bytes) -> Iterator[tuple[bytes, QueueDefinition]]:
        """Iterate over the definitions from an engine key on, with their engine keys.

        These keys are told, and taken, as if the definitions were records of this range.

        Raises:
            QueueDamaged: one cannot be read.
        """
        own = max(lower, self._own_prefix)
        if not own.startswith(self._own_prefix):
            return
        size, end = len(self._prefix), keys.after_prefix(self._prefix)
        for key, packed in stored.iterate(self._prefix + own[size:], end):
            yield self._own_prefix + key[size:], self._decode(key, packed)

    def key_tail(self, definition: QueueDefinition) -> bytes:
        """Return the end of the key of a definition among the others."""
        if not definition.dropped:
            return definition.name.encode()
        return self._dropped[len(self._prefix) :] + keys.u32(definition.number)

    def read(self, reader: Reader | Evaluation, name: str) -> QueueDefinition | None:
        """Return the definition of a queue, or `None`.

        Raises:
            QueueDamaged: it cannot be read.
        """
        key = self._prefix + name.encode()
        stored = reader.get(key) if self._range_id == ROOT_ID else read_past_cache(reader, key)
        return None if stored is None else self._decode(key, stored)

    def create(self, ctx: Evaluation, request: CreateQueue) -> QueueDefinition | None:
        """Evaluate ``CreateQueue`` and return the definition, or `None` if the queue existed.

        Raises:
            Invalid: a setting is wrong; or there is such a queue with other settings.
            Unavailable: not all ranges have learned yet that a queue of this name was dropped.
        """
        name, settings = request.name, request.settings
        check_settings(name, settings)
        self._check_name_is_free(ctx, name)
        known = self.read(ctx, name)
        if known is not None:
            _check_same(known, settings)
            return None
        self._check_dead_letter_queue(ctx, name, settings)
        number = int.from_bytes(ctx.get(self._number) or b"", "big") + 1
        ctx.writes[self._number] = keys.u32(number)
        self._note(ctx, name)
        definition = QueueDefinition(name, number, ctx.timestamp, settings)
        self._put(ctx, definition)
        return definition

    def update(self, ctx: Evaluation, request: UpdateQueue) -> QueueDefinition:
        """Evaluate ``UpdateQueue`` and return the new definition.

        Raises:
            Invalid: a setting is wrong; or there is no such queue.
        """
        known = self.read(ctx, request.name)
        if known is None:
            raise no_such_queue(request.name)
        settings = changed_settings(request.name, known.settings, request.settings)
        self._check_dead_letter_queue(ctx, request.name, settings)
        paused = known.paused if request.paused is None else request.paused
        definition = msgspec.structs.replace(known, settings=settings, paused=paused)
        self._note(ctx, request.name)
        self._put(ctx, definition)
        return definition

    def drop(
        self,
        ctx: Evaluation,
        request: DropQueue,
        remembered: QueueDefinition | None,
        *,
        is_alone: bool,
    ) -> list[QueueDefinition]:
        """Evaluate ``DropQueue`` and return the definitions to be emptied: one, if it is known.

        Args:
            remembered: the definition in the leaseholder's memory, in case the stored one cannot be
                read.
            is_alone: whether there is no other range, which has to learn of it.

        Raises:
            Invalid: there is no such queue.
        """
        try:
            found = self.read(ctx, request.name)
            if found is None:
                raise no_such_queue(request.name)
            known = [found]
        except QueueDamaged:
            known = [remembered] if remembered else self._nobodys(ctx, request.name)
        version = self._note(ctx, request.name)
        dropped = [
            DroppedQueue(
                each.name, each.number, each.created_at, each.settings, dropped=True,
                version=0 if is_alone else version,
            )
            for each in known
        ]  # fmt: skip
        ctx.writes[self._prefix + request.name.encode()] = None
        for each in dropped:
            ctx.writes[self._dropped + keys.u32(each.number)] = _encode(each)
        ctx.grow(256)
        return [*dropped]

    def _note(self, ctx: Evaluation, name: str) -> int:
        """Note in the record of the version that a queue changes; return the new version."""
        version, names = decode_version(ctx.get(VERSION_KEY))
        if not ctx.is_written(VERSION_KEY):
            version, names = version + 1, []
        if names is not None:
            names = [*names, name] if len(names) < NAMES_TOLD else None
        ctx.writes[VERSION_KEY] = _encode(_Version(version, names))
        ctx.grow(len(name) + len(VERSION_KEY))
        return version

    # --- dropped queues of which not all ranges have learned

    def dropped(self, ctx: Evaluation | Reader) -> list[DroppedQueue]:
        """Return the dropped queues that are not forgotten."""
        found = []
        for _, packed in ctx.iterate(self._dropped, keys.after_prefix(self._dropped)):
            with suppress(*UNDECODABLE):
                found.append(_dropped.decode(packed))
        return found

    def _check_name_is_free(self, ctx: Evaluation, name: str) -> None:
        if any(each.name == name and each.version for each in self.dropped(ctx)):
            raise Unavailable(
                f"a queue {name!r} was dropped, and some ranges do not know that yet; nothing was "
                "changed: try again",
                retry_after=0.05,
            )

    def all_know(self, ctx: Evaluation, version: int) -> list[int]:
        """Note that all ranges have learned a version; return which queues were dropped by then."""
        known = [each for each in self.dropped(ctx) if 0 < each.version <= version]
        for each in known:
            key = self._dropped + keys.u32(each.number)
            ctx.writes[key] = stored = _encode(msgspec.structs.replace(each, version=0))
            ctx.grow(len(key) + len(stored))
        return [each.number for each in known]

    def _nobodys(self, ctx: Evaluation, name: str) -> list[QueueDefinition]:
        """Return definitions for the rest of a queue whose definition is damaged.

        The number is unknown too. These definitions have all numbers with records and no
        definition. If other definitions are damaged too, nobody knows which of these numbers are
        theirs, and none is returned. The last damaged queue that is dropped takes all of them.
        """
        known, unreadable = self.read_all(ctx)
        ctx.steps += len(known)
        if any(error.queue != name for error in unreadable):
            return []
        numbers = {definition.number for definition in known}
        found: list[QueueDefinition] = []
        index = index_in_use(ctx, self._range_id)
        cursor = keys.queue_prefix(self._range_id, 1, index)
        begins = len(self._prefix) - _NUMBER_BYTES
        end = keys.after_prefix(cursor[:begins])
        while True:
            first = next(iter(ctx.iterate(cursor, end)), None)
            if first is None:
                return found
            number = int.from_bytes(first[0][begins : len(self._prefix)], "big")
            cursor = keys.after_prefix(keys.queue_prefix(self._range_id, number, index))
            ctx.steps += 1
            if number not in numbers:
                found.append(QueueDefinition(name, number, ctx.timestamp, NOBODY_KNOWS))

    def forget(self, ctx: Evaluation, number: int) -> None:
        """Forget a dropped queue that is empty, unless not all ranges know that it was dropped."""
        if not any(each.number == number and each.version for each in self.dropped(ctx)):
            ctx.writes[self._dropped + keys.u32(number)] = None

    def _put(self, ctx: Evaluation, definition: QueueDefinition) -> None:
        ctx.writes[self._prefix + definition.name.encode()] = stored = _encode(definition)
        ctx.grow(len(stored) + len(self._prefix) + len(definition.name))

    def _check_dead_letter_queue(self, ctx: Evaluation, name: str, settings: QueueSettings) -> None:
        other = settings.dead_letter_queue
        if other is not None and self.read(ctx, other) is None:
            raise Invalid(
                f"the queue {name!r} was not changed: its dead_letter_queue {other!r} is not "
                "there: make that first"
            )
        chain = [name]
        while other is not None and other not in chain:
            chain.append(other)
            after = self.read(ctx, other)
            other = None if after is None else after.settings.dead_letter_queue
        if other is not None:
            raise Invalid(
                f"the queue {name!r} was not changed: its dead letters would go round in a circle "
                f"({' to '.join(map(repr, [*chain, other]))}), tried again for ever"
            )


def _name_in(tail: bytes) -> str:
    """Return the name of a queue from the key of its definition."""
    return tail.decode(errors="backslashreplace")


def _check_same(known: QueueDefinition, settings: QueueSettings) -> None:
    others = [
        f"{setting} is {was!r}, not {getattr(settings, setting)!r}"
        for setting in _FIELDS
        if (was := getattr(known.settings, setting)) != getattr(settings, setting)
    ]
    if others:
        raise Invalid(
            f"there is a queue {known.name!r} with other settings: {'; '.join(others)}; nothing "
            "was changed: update() changes settings"
        )
