"""Pages of a store in trouble come in time, and nothing grows while they are open."""

from __future__ import annotations

import asyncio
import gc
import time
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient

import postroom
import postroom.aio
from postroom.web import store as web_store
from postroom.web.application import make
from postroom.web.history import History
from postroom.web.limits import READS_AT_ONCE_MAX, SAMPLE_SECONDS, SAMPLES_MAX, SERIES_MAX
from postroom.web.store import NotKnown, OpenStore
from tests.web.visits import PATHS, Visit


def test_a_closed_store_is_told(visit: Visit) -> None:
    visit.db.close()
    page = visit.page("/")
    assert page.count("Not known") == 3
    assert "was closed" in page
    for path in PATHS[1:-2]:
        answer = visit.client.get(path)
        assert answer.status_code == 503
        assert "was closed" in answer.text


def test_a_part_that_does_not_answer_is_told_and_the_others_are_shown(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: Any, **_: Any) -> list[Any]:
        await asyncio.sleep(3600)
        return []

    monkeypatch.setattr(web_store, "READ_SECONDS_MAX", 0.2)
    monkeypatch.setattr(postroom.aio.Database, "queues", hangs)
    began = time.monotonic()
    found = visit.contents("/")
    assert time.monotonic() - began < 60
    assert "did not answer" in found["queues"]["unknown"]
    assert found["status"]["conservation"]["holds"]


def test_few_reads_are_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand visitors of a store that hangs wait in the pages, and not in the store."""
    monkeypatch.setattr(web_store, "READ_SECONDS_MAX", 0.2)
    at_once, most = 0, 0

    async def hangs(_: postroom.aio.Database) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await asyncio.sleep(3600)
        finally:
            at_once -= 1

    async def visited() -> list[Any]:
        async with await postroom.aio.open(":memory:") as db:
            store = OpenStore(db)
            reads = (store.read(hangs) for _ in range(1000))
            return await asyncio.gather(*reads, return_exceptions=True)

    found = asyncio.run(visited())
    assert [type(each) for each in found] == [NotKnown] * 1000
    assert (most, at_once) == (READS_AT_ONCE_MAX, 0)


def test_the_points_of_charts_are_bounded() -> None:
    now = [0.0]
    history = History(lambda: now[0])
    for number in range(3 * SAMPLES_MAX):
        now[0] += SAMPLE_SECONDS
        history.note("store", {"a": number})
    assert len(history.series("store")["at"]) == SAMPLES_MAX
    assert history.rates("store") == {"a": 1 / SAMPLE_SECONDS}
    for number in range(10 * SERIES_MAX):
        history.note(f"queue {number}", {"a": 1})
    assert len(history._series) == SERIES_MAX
    assert history.series("store") == {"at": [], "values": {}}


def test_pages_that_are_left_open_for_a_day_grow_nothing(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day has 17,280 polls; memory of the process is bounded after the first few.

    Others change the number of objects too, but they do not add to it in each round.
    """
    monkeypatch.setattr("postroom.web.history.SAMPLES_MAX", 20)
    now = [0.0]
    options = {"client_of": None, "payloads": False, "hosts": ()}
    client = TestClient(make(visit.db, wall_seconds=lambda: now[0], **options))

    def polled(times: int) -> int:
        for _ in range(times):
            now[0] += SAMPLE_SECONDS
            for path in ("/", "/api/chart", "/queue?queue=mail", "/api/chart?queue=mail"):
                assert client.get(path).status_code == 200
        gc.collect()
        return len(gc.get_objects())

    objects = [polled(40), *(polled(120) for _ in range(4))]
    assert min(after - before for before, after in pairwise(objects)) < 120


def test_a_chart_goes_on_after_the_clock_was_set_back() -> None:
    now = [1000.0]
    history = History(lambda: now[0])
    for at in (1000.0, 1000.0 + SAMPLE_SECONDS, 500.0, 500.0 + SAMPLE_SECONDS):
        now[0] = at
        history.note("store", {"a": at})
    assert history.series("store")["at"] == [500.0, 500.0 + SAMPLE_SECONDS]


def test_pages_of_an_open_store_in_the_asyncio_form_are_the_same() -> None:
    async def read() -> Any:
        async with await postroom.aio.open(":memory:") as db:
            await db.put(b"a", b"1")
            store = OpenStore(db)
            return await store.read(lambda opened: opened.get(b"a"))

    assert asyncio.run(read()) == b"1"
