"""The states of ingests: each event leads to the state of the table, or is refused in words."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from postroom.errors import Invalid
from postroom.messaging.ingest import machine
from postroom.messaging.ingest.machine import (
    TRANSITIONS,
    Ingest,
    IngestEvent,
    Ingests,
    IngestSource,
    IngestState,
    LoadedSpan,
    RestoredImage,
    StagedBatch,
)

NAME = b"name"
SOURCES: list[IngestSource] = [
    StagedBatch(b"query", 7, b"sink"),
    LoadedSpan(b"a", b"b"),
    RestoredImage(b"image", 5),
]


class Written:
    """An evaluation that only takes up writes."""

    def __init__(self) -> None:
        self.writes: dict[bytes, bytes | None] = {}
        self.timestamp = 9

    def get(self, key: bytes) -> bytes | None:
        return self.writes.get(key)

    def grow(self, size: int) -> None:
        assert size > 0


def known(source: IngestSource, state: IngestState) -> Ingest:
    return Ingest(state, source, b"r" * 16, 3)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("state", "event"), list(product(IngestState, IngestEvent)))
def test_an_event_leads_to_the_next_state_or_is_refused(
    source: IngestSource, state: IngestState, event: IngestEvent
) -> None:
    ctx: Any = Written()
    ingests = Ingests(b"p", type(source))
    before = known(source, state)
    after = TRANSITIONS[type(source)].get(state, {}).get(event)
    if state not in TRANSITIONS[type(source)]:
        return
    if after is None:
        with pytest.raises(Invalid, match="nothing was"):
            ingests.move(ctx, NAME, before, event)
        assert not ctx.writes
        return
    moved = ingests.move(ctx, NAME, before, event)
    assert (moved.state, moved.source, moved.run, moved.at) == (after, source, before.run, 9)
    assert ingests.read(ctx, NAME) == (None if after is IngestState.NONE else moved)


@pytest.mark.parametrize("kind", list(TRANSITIONS))
def test_every_state_of_the_table_is_reached_and_can_be_left_again(kind: type) -> None:
    table = TRANSITIONS[kind]
    reached, found = {IngestState.NONE}, [IngestState.NONE]
    while found:
        for after in table[found.pop()].values():
            if after not in reached:
                reached.add(after)
                found.append(after)
    assert reached == set(table)
    final = {state for state, events in table.items() if not events}
    assert final <= {IngestState.DONE}


@pytest.mark.parametrize("source", SOURCES[1:])
def test_only_the_present_run_of_an_open_ingest_may_add(source: IngestSource) -> None:
    ctx: Any = Written()
    ingests = Ingests(b"p", type(source))
    for state in TRANSITIONS[type(source)]:
        ctx.writes[b"p" + NAME] = machine.encode(known(source, state))
        if state is IngestState.OPEN:
            assert ingests.of_run(ctx, NAME, b"r" * 16) == known(source, state)
        else:
            with pytest.raises(Invalid, match="late"):
                ingests.of_run(ctx, NAME, b"r" * 16)
        with pytest.raises(Invalid, match="late"):
            ingests.of_run(ctx, NAME, b"s" * 16)


def test_the_record_of_another_kind_is_refused_where_it_comes_from_outside() -> None:
    decode = machine.decoder(StagedBatch)
    good = known(SOURCES[0], IngestState.OPEN)
    assert decode(machine.encode(good)) == good
    for wrong in (known(SOURCES[1], IngestState.OPEN), known(SOURCES[0], IngestState.REMOVING)):
        with pytest.raises(ValueError, match="is not the record"):
            decode(machine.encode(wrong))
