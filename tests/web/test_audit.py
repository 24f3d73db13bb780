"""The audit log of the store tells what visitors did on the pages, and what they were refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.access import AccessCalls
from postroom.errors import Unavailable
from postroom.web import audit as web_audit
from postroom.web.audit import AuditLog
from postroom.web.limits import (
    AUDIT_SECONDS,
    AUDITED_CHARACTERS_MAX,
    AUDITED_MAX,
    AUDITED_PER_VISITOR_MAX,
)
from postroom.web.store import OpenStore
from tests.web.visits import HOSTILE, Visit, filled

CLIENTS = {"of mara": ("none", "mara"), "of ops": ("admin", "ops<b>"), "plain": ("write", "")}
NONE = ("one", "refused", "", 1)


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with filled() as db:
        yield db


@pytest.fixture(autouse=True)
def refusals_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_audit, "AUDIT_SECONDS", 0.0)


def visited(db: postroom.Database, token: str) -> Visit:
    return Visit(db, token=token, client_of=CLIENTS.get)


def told(db: postroom.Database) -> list[tuple[str, str, str, int]]:
    return [(each.by, each.action, each.what, each.times) for each in db.access.audit_log()]


def acts(db: postroom.Database) -> list[tuple[str, str, str, int]]:
    """Return what is told of actions; a visitor looks at a page for the proof of a form."""
    return [each for each in told(db) if not each[2].startswith("a look at ")]


def test_an_action_is_told_with_the_name_of_the_token(db: postroom.Database) -> None:
    letter = db.dead_letters()[0].id
    assert visited(db, "of ops").act("discard", letter).status_code == 200
    visited(db, "plain").act("queue-pause", queue="mail")
    Visit(db).act("queue-resume", queue="mail")
    assert told(db) == [
        ("ops<b> at testclient", "done", f"1 by discard: {letter}", 1),
        ("write at testclient", "done", "1 by queue-pause in the queue 'mail'", 1),
        ("visitor at testclient", "done", "1 by queue-resume in the queue 'mail'", 1),
    ]
    page = visited(db, "of ops").page("/access")
    assert "ops&lt;b&gt; at testclient" in page
    assert "ops<b>" not in page


def test_refused_and_failed_actions_are_told(db: postroom.Database) -> None:
    visited(db, "of mara").act("queue-pause", queue="mail")
    visited(db, "of ops").act("queue-pause", queue="mail", proof="guessed")
    visited(db, "of ops").act("discard", "no id")
    pause = "queue-pause in the queue 'mail'; "
    assert acts(db) == [
        ("mara at testclient", "refused",
         f"{pause}this client lacks the right 'write' on the queue 'mail'", 1),
        ("ops<b> at testclient", "refused", f"{pause}this form is not of your session", 1),
        ("ops<b> at testclient", "failed", "discard: no id; 'no id' is not the id of a dead letter",
         1),
    ]  # fmt: skip


def test_refused_looks_are_told_by_page_and_counted(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_audit, "AUDIT_SECONDS", AUDIT_SECONDS)
    visit = visited(db, "of mara")
    for number in range(20):
        assert visit.client.get(f"/key?key={number}").status_code == 403
        assert visit.client.get(f"/api/access?prefix={number}").status_code == 403
    monkeypatch.setattr(web_audit, "AUDIT_SECONDS", 0.0)
    visit.client.get("/nothing")
    visit.client.get("/access")
    found = told(db)
    assert {(by, action) for by, action, _, _ in found} == {("mara at testclient", "refused")}
    looks = {what.partition(";")[0] for _, _, what, _ in found}
    assert looks == {"a look at /key", "a look at /access", "other actions"}
    assert sum(times for *_, times in found) == 41
    assert len(found) <= AUDITED_PER_VISITOR_MAX + 3


def test_a_refused_token_is_told_with_the_host_and_without_the_token(
    db: postroom.Database,
) -> None:
    visit = visited(db, "of ops")
    for _ in range(3):
        assert visit.client.post("/login", data={"token": "guessed"}).status_code == 403
    visit.page("/")
    found = told(db)
    assert {each[:3] for each in found} == {
        ("testclient", "refused", "a login; a token was refused")
    }
    assert sum(times for *_, times in found) == 3


def test_a_visitor_does_not_take_the_lines_of_others(db: postroom.Database) -> None:
    log = AuditLog(OpenStore(db))
    for number in range(1000):
        log.not_done("mara", "refused", f"{number}", Exception())
    log.not_done("ops", "refused", "discard", Exception())
    asyncio.run(log.tell())
    found = told(db)
    assert sum(times for by, *_, times in found if by == "mara") == 1000
    assert len(found) == AUDITED_PER_VISITOR_MAX + 2
    assert found[-1][:3] == ("ops", "refused", "discard; ")


def test_hostile_ids_and_queues_of_refused_actions_are_escaped_and_cut(
    db: postroom.Database,
) -> None:
    visited(db, "of mara").act("discard", *[HOSTILE.decode() * 9] * 9, queue=HOSTILE.decode() * 99)
    ((_, _, what, _),) = acts(db)
    assert len(what) <= AUDITED_CHARACTERS_MAX
    assert HOSTILE.decode() not in visited(db, "of ops").page("/access")


def test_refused_actions_are_counted_and_cost_no_write_each(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(web_audit, "AUDIT_SECONDS", AUDIT_SECONDS)
    store = OpenStore(db)
    log = AuditLog(store, lambda: now[0])
    for _ in range(1000):
        log.not_done("mara", "refused", "discard", Exception("why; nothing was done"))
        if log.is_due():
            asyncio.run(log.tell())
    assert told(db) == [("mara", "refused", "discard; why", 1)]
    now[0] = AUDIT_SECONDS
    assert log.is_due()
    asyncio.run(log.tell())
    assert not log.is_due()
    assert told(db)[1:] == [("mara", "refused", "discard; why", 999)]


def test_different_refusals_are_bounded(db: postroom.Database) -> None:
    log = AuditLog(OpenStore(db))
    for number in range(100 * AUDITED_MAX):
        log.not_done(f"{number}", "refused", f"{number}", Exception())
    while log.is_due():
        asyncio.run(log.tell())
    found = told(db)
    assert len(found) == AUDITED_MAX + 1
    assert sum(times for *_, times in found) == 100 * AUDITED_MAX
    assert [each[:3] for each in found if each[3] > 1] == [
        ("other visitors", "refused", "other actions")
    ]


def test_an_audit_log_that_cannot_be_written_is_told_and_counted_later(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Any, actions: Any) -> None:
        raise Unavailable("no room")

    visit = visited(db, "of ops")
    with monkeypatch.context() as broken:
        broken.setattr(AccessCalls, "note", fails)
        answer = visit.act("queue-pause", queue="mail")
        assert "The audit log was not told: no room" in answer.text
        visit.act("queue-pause", queue="none")
    assert db.queue("mail").info().paused
    assert told(db) == []
    visit.page("/")
    assert [each[1] for each in told(db)] == ["failed"]


def test_an_action_of_a_visitor_who_does_not_wait_is_told(db: postroom.Database) -> None:
    """The action goes on, and so does its entry, though the answer has no taker."""
    letter = db.dead_letters()[0].id
    visit = visited(db, "of ops")
    visit.act("discard", letter)
    visit.client.close()
    assert [each[1] for each in told(db)] == ["done"]
