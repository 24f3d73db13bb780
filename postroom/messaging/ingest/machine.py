"""The states of an ingest, the events that change them, and its record.

Read the table downwards: the states; each line has the events that count there, and the state that
follows. Any other event is refused, with the text of its kind in ``_REFUSALS``::

    none ── BEGIN, ADD ─▶ open ── END ─▶ applying, done ── LAST ─▶ none
                            │
                            └── ABORT ─▶ closed, removing ── LAST ─▶ none

* A *staged batch* is open from its first chunk on. It ends as published, and is *applying* until
  all its rows are carried out; or it is *closed*: late tasks are refused.
* A *load* is open for one run. A run that gives up leaves it closed, and another run opens it. It
  is done when it is done in the range of its first key. Others that are done are opened again.
* A *restore* closes the store first (*opening*), looks whether it is still empty, and is open then.
  It ends as done, for good; or its entries are removed (*removing*).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from postroom.errors import Invalid, shorten
from postroom.kv.engine import Reader
from postroom.ranges.evaluation import WRITE_BYTES, Evaluation, View


class IngestState(enum.StrEnum):
    """A state of an ingest; ``NONE``: there is no record."""

    NONE = ""
    OPENING = "opening"
    OPEN = "open"
    APPLYING = "applying"
    CLOSED = "closed"
    REMOVING = "removing"
    DONE = "done"


class IngestEvent(enum.Enum):
    """An event in the life of an ingest.

    * ``BEGIN``: a run begins, or goes on.
    * ``ADD``: a chunk comes.
    * ``END``: all chunks are there, and count.
    * ``ABORT``: none of its rows shall count, or no more of them.
    * ``LAST``: nothing is left to be done.
    """

    BEGIN = enum.auto()
    ADD = enum.auto()
    END = enum.auto()
    ABORT = enum.auto()
    LAST = enum.auto()


class StagedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="batch"):
    """A try to write a batch of a query; ``sink`` is the name by which aborts find it."""

    query: bytes
    number: int
    sink: bytes


class LoadedSpan(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="load"):
    """A bulk load into ``[start, end)``."""

    start: bytes
    end: bytes | None


class RestoredImage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="image"):
    """A restore of an image, which is of this timestamp."""

    image: bytes
    timestamp: int


IngestSource: TypeAlias = StagedBatch | LoadedSpan | RestoredImage


class Ingest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The record of an ingest.

    Attributes:
        state: its state.
        source: the batch, load or image. It is the same in each try.
        run: the run that may add rows; empty: none, or the record is that of a run.
        at: when the state last changed; of staged batches, about when the last chunk came.
        removed: the engine key before which nothing is left, while rows are removed.
    """

    state: IngestState
    source: IngestSource
    run: bytes = b""
    at: int = 0
    removed: bytes = b""


_NONE, _OPENING, _OPEN = IngestState.NONE, IngestState.OPENING, IngestState.OPEN
_APPLYING, _CLOSED = IngestState.APPLYING, IngestState.CLOSED
_REMOVING, _DONE = IngestState.REMOVING, IngestState.DONE
_BEGIN, _ADD, _END = IngestEvent.BEGIN, IngestEvent.ADD, IngestEvent.END
_ABORT, _LAST = IngestEvent.ABORT, IngestEvent.LAST

TRANSITIONS: Final[dict[type, dict[IngestState, dict[IngestEvent, IngestState]]]] = {
    StagedBatch: {
        _NONE: {_ADD: _OPEN, _END: _APPLYING, _ABORT: _CLOSED},
        _OPEN: {_ADD: _OPEN, _END: _APPLYING, _ABORT: _CLOSED},
        _APPLYING: {_LAST: _NONE},
        _CLOSED: {_LAST: _NONE},
    },
    LoadedSpan: {
        _NONE: {_BEGIN: _OPEN},
        _OPEN: {_BEGIN: _OPEN, _ADD: _OPEN, _END: _DONE, _ABORT: _CLOSED, _LAST: _NONE},
        _CLOSED: {_BEGIN: _OPEN, _LAST: _NONE},
        _DONE: {_BEGIN: _OPEN, _LAST: _NONE},
    },
    RestoredImage: {
        _NONE: {_BEGIN: _OPENING},
        _OPENING: {_BEGIN: _OPEN, _LAST: _NONE},
        _OPEN: {_BEGIN: _OPEN, _ADD: _OPEN, _END: _DONE, _ABORT: _REMOVING, _LAST: _NONE},
        _REMOVING: {_ABORT: _REMOVING, _LAST: _NONE},
        _DONE: {},
    },
}
"""The state that follows, by kind, state and event."""


_REFUSALS: Final[dict[tuple[type, IngestEvent], str]] = {
    (StagedBatch, _ADD): (
        "the job that this task belongs to (batch {batch} of {query}) was aborted; nothing was "
        "staged: this task is late"
    ),
    (StagedBatch, _END): (
        "the job was aborted before its batch {batch} of {query} was published; nothing was "
        "changed: run it again"
    ),
    (LoadedSpan, _ADD): (
        "the load {name} is over, or another run of it has begun; nothing was changed: this task "
        "is late"
    ),
    (RestoredImage, _BEGIN): (
        "this restore is being abandoned; nothing was changed: let that come to its end, and begin "
        "anew"
    ),
    (RestoredImage, _ADD): (
        "this restore is over, or was abandoned, or another run of it has begun; nothing was "
        "changed: this task is late"
    ),
    (RestoredImage, _ABORT): "nothing is being restored here; nothing was changed",
}
"""The texts of refusals, by kind and event."""
_IMPOSSIBLE: Final = "{name} is in no state for that; nothing was changed"

encode = msgspec.msgpack.encode
ingests: Final = msgspec.msgpack.Decoder(Ingest)


def refused(name: bytes, source: IngestSource | type, event: IngestEvent) -> Invalid:
    """Return the error for an event that does not count in the state of an ingest."""
    kind = source if isinstance(source, type) else type(source)
    batch = source if isinstance(source, StagedBatch) else StagedBatch(b"", 0, b"")
    text = _REFUSALS.get((kind, event), _IMPOSSIBLE)
    return Invalid(text.format(name=shorten(name), batch=batch.number, query=shorten(batch.query)))


def decoder(kind: type) -> Callable[[bytes], Ingest]:
    """Return a decoder of records of a kind; it raises ``ValueError`` for any other record."""

    def decode(stored: bytes) -> Ingest:
        found = ingests.decode(stored)
        if type(found.source) is not kind or found.state not in TRANSITIONS[kind]:
            raise ValueError(f"it is not the record of a {kind.__name__}")
        return found

    return decode


class Ingests:
    """The records of ingests under one prefix of engine keys.

    Args:
        prefix: the prefix; the name of the ingest follows.
        kind: the kind of their sources.
    """

    def __init__(self, prefix: bytes, kind: type) -> None:
        self.prefix = prefix
        self._kind = kind

    def read(self, reader: Evaluation | View | Reader, name: bytes = b"") -> Ingest | None:
        """Return an ingest; `None`: there is no record of it."""
        stored = reader.get(self.prefix + name)
        return None if stored is None else ingests.decode(stored)

    def of_run(self, ctx: Evaluation, name: bytes, run: bytes) -> Ingest:
        """Return an ingest to which a run may add.

        Raises:
            Invalid: it is not open, or another run has taken its place.
        """
        known = self.read(ctx, name)
        if known is None or known.state is not _OPEN or known.run != run:
            raise refused(name, self._kind, _ADD)
        return known

    def move(
        self, ctx: Evaluation, name: bytes, known: Ingest, event: IngestEvent, **changes: Any
    ) -> Ingest:
        """Change the state of an ingest, and its record; return what it is now.

        Args:
            ctx: the evaluation.
            name: the name of the ingest.
            known: what it was; a new one is in the state ``NONE``.
            event: the event.
            changes: other attributes of the record that change.

        Raises:
            Invalid: the event does not count in this state.
        """
        after = TRANSITIONS[type(known.source)][known.state].get(event)
        if after is None:
            raise refused(name, known.source, event)
        engine_key = self.prefix + name
        moved = msgspec.structs.replace(known, state=after, **{"at": ctx.timestamp, **changes})
        ctx.writes[engine_key] = stored = None if after is _NONE else encode(moved)
        ctx.grow(len(engine_key) + len(stored or b"") + WRITE_BYTES)
        return moved


def check_sorted(what: str, names: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Check that a chunk has names in rising order, and a value for each.

    Raises:
        Invalid: it has not.
    """
    if not names or len(names) != len(values):
        raise Invalid(f"a chunk has {what}, and a value for each; nothing was changed")
    if not all(one < other for one, other in pairwise(names)):
        raise Invalid(f"the {what} of a chunk rise; nothing was changed: sort them first")


def is_empty(ctx: Evaluation, lower: bytes, upper: bytes) -> bool:
    """Return whether there is nothing in a span of engine keys: one question for a chunk."""
    ctx.steps += 1
    return next(ctx.iterate(lower, upper), None) is None
