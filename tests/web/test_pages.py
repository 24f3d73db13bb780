"""Each page shows what the store contains, escaped, and its JSON has the same contents."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import postroom
import postroom.aio
import postroom.web
from postroom import limits
from postroom.web.limits import QUEUES_SUMMED_MAX, ROWS_MAX, SHOWN_BYTES_MAX
from postroom.web.table import PAGES
from tests.web.visits import HOSTILE, PATHS, Visit


@pytest.mark.parametrize("path", PATHS)
def test_pages_escape_hostile_names(visit: Visit, path: str) -> None:
    page = visit.page(path)
    assert HOSTILE.decode() not in page


@pytest.mark.parametrize("path", PATHS)
def test_pages_have_neither_scripts_nor_styles_of_their_own(visit: Visit, path: str) -> None:
    page = visit.page(path)
    assert not re.search(r"<script(?![^>]* src=)", page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page)


@pytest.mark.parametrize("path", PATHS)
def test_each_page_has_its_contents_as_json(visit: Visit, path: str) -> None:
    assert visit.contents(path)


def test_a_hostile_name_is_shown_as_text(visit: Visit) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in visit.page("/inboxes")
    assert visit.contents("/inboxes")["inboxes"][0]["key"] == {
        "text": HOSTILE.decode(),
        "hex": HOSTILE.hex(),
    }


def test_the_overview_adds_all_messages_up(visit: Visit) -> None:
    found = visit.contents("/")
    sums = found["status"]["conservation"]
    assert sums["holds"]
    assert (sums["enqueued"], sums["delivered"], sums["pending"], sums["dead"]) == (3, 1, 1, 1)
    assert (found["queues"]["ready"], found["queues"]["leased"], found["queues"]["dead"]) == (
        2,
        1,
        1,
    )
    assert found["ranges"]["count"] == 1
    assert "≠" not in visit.page("/")


def test_a_queue_tells_who_holds_messages_and_why_others_died(visit: Visit) -> None:
    found = visit.contents("/queue?queue=mail")
    assert found["longest_held"]["id"]["text"] == "held"
    assert found["failures"] == [{"reason": HOSTILE.decode(), "messages": 1}]
    assert [each["queue"] for each in visit.contents("/workers")["queues"]] == ["mail"]


def test_a_message_has_its_life_in_order(visit: Visit) -> None:
    found = visit.contents("/message?queue=mail&id=held&kind=welcome")["message"]
    events = [each["what"] for each in found["life"]]
    assert events[0] == "enqueued"
    assert "claimed" in " ".join(events)


def test_a_message_of_an_inbox_has_its_time_line(visit: Visit) -> None:
    (message,) = visit.contents(f"/inbox?key_hex={HOSTILE.hex()}")["messages"]
    (found,) = visit.contents(f"/trace?id={message['id']}&key_hex={HOSTILE.hex()}")["traces"]
    assert "delivered" in [each["what"] for each in found["events"]]
    assert f"/trace?id={message['id']}" in visit.page(f"/inbox?key_hex={HOSTILE.hex()}")
    assert visit.contents("/trace?id=none")["traces"] == []
    assert "knows no such message" in visit.page("/trace?id=none")


def test_a_message_that_is_not_there_is_told(visit: Visit) -> None:
    assert visit.contents("/message?queue=mail&id=none")["message"] is None
    assert "has no such message" in visit.page("/message?queue=mail&id=none")


def test_a_key_is_shown_as_it_was(visit: Visit) -> None:
    found = visit.contents(f"/key?key_hex={HOSTILE.hex()}")
    assert [each["value"]["text"] for each in found["changes"]] == ["second", "first"]
    first = found["changes"][1]["number"]
    before = visit.contents(f"/key?key_hex={HOSTILE.hex()}&at={first}")
    assert before["value"]["text"] == "first"
    pairs = visit.contents(f"/keys?at={first}")["pairs"]
    assert [each["value"]["text"] for each in pairs] == ["first", HOSTILE.decode()]


@pytest.mark.parametrize(("page", "name"), [("/inboxes", "after_hex"), ("/keys", "from_hex")])
def test_lists_go_on_after_their_last_row(visit: Visit, page: str, name: str) -> None:
    with visit.db.begin() as tx:
        for number in range(ROWS_MAX):
            tx.put(b"many/%03d" % number, b"")
            tx.enqueue_message(b"many/%03d" % number, b"")
    seen, after = list[str](), ""
    while True:
        found = visit.contents(f"{page}?prefix=many/&limit=30{after}")
        seen += [each["key"]["text"] for each in found.get("inboxes") or found.get("pairs")]
        if found["next"] is None:
            break
        following = f"{name}={found['next']['hex']}"
        assert following in visit.page(f"{page}?prefix=many/&limit=30{after}")
        after = f"&{following}"
    assert seen == [f"many/{number:03d}" for number in range(ROWS_MAX)]


def test_keys_among_many_messages_are_found_page_by_page(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 64)
    with visit.db.begin() as tx:
        tx.put(b"m/last", b"")
        for number in range(1000):
            tx.enqueue_message(b"m/%03d" % number, b"")
    found = visit.contents("/keys?prefix=m/")
    assert found["pairs"] == []
    assert "no values so far" in visit.page("/keys?prefix=m/")
    visits = 1
    while found["next"]:
        visits += 1
        found = visit.contents(f"/keys?prefix=m/&from_hex={found['next']['hex']}")
    assert [each["key"]["text"] for each in found["pairs"]] == ["m/last"]
    assert visits > 3


def test_lists_of_queues_go_on_after_their_last_row(visit: Visit) -> None:
    names = [f"q{number:03d}" for number in range(QUEUES_SUMMED_MAX + 5)]
    for name in names:
        visit.db.create_queue(name)
    first = visit.contents("/queues")
    second = visit.contents(f"/queues?after={first['next']}")
    assert [each["name"] for each in first["queues"] + second["queues"]] == ["mail", *names]
    assert f'href="/queues?after={first["next"]}"' in visit.page("/queues")
    summed = visit.contents("/")["queues"]
    assert (summed["count"], summed["has_more"]) == (QUEUES_SUMMED_MAX, True)
    assert f"the first {QUEUES_SUMMED_MAX} queues" in visit.page("/")


def test_workers_of_all_queues_are_found_page_by_page(visit: Visit) -> None:
    for number in range(QUEUES_SUMMED_MAX):
        visit.db.create_queue(f"a{number:03d}")
    first = visit.contents("/workers")
    assert first["queues"] == []
    assert f'href="/workers?after={first["next"]}"' in visit.page("/workers")
    second = visit.contents(f"/workers?after={first['next']}")
    assert ([each["queue"] for each in second["queues"]], second["next"]) == (["mail"], None)


def test_pages_read_a_bounded_number_of_queues(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, read = list[int | None](), postroom.aio.Database.queues

    async def queues(self: Any, *, after: str = "", limit: int | None = None) -> Any:
        asked.append(limit)
        return await read(self, after=after, limit=limit)

    monkeypatch.setattr(postroom.aio.Database, "queues", queues)
    for page in PAGES:
        visit.client.get(f"/api{page.path}?queue=mail&id=held&kind=welcome&key=text")
    visit.page("/")
    assert asked
    assert all(each is not None and each <= QUEUES_SUMMED_MAX + 1 for each in asked)


def test_payloads_are_hidden_unless_they_are_allowed() -> None:
    with postroom.open(":memory:") as db:
        with db.begin() as tx:
            tx.put(b"key", b"secret")
            tx.enqueue_message(b"key", b"secret", headers={"name": "secret"})
        hidden, shown = Visit(db), Visit(db, payloads=True)
        for path in ("/key?key=key", "/keys", "/inbox?key=key"):
            assert "secret" not in hidden.page(path) + str(hidden.contents(path))
            assert "secret" in shown.page(path)
        assert hidden.contents("/key?key=key")["value"]["bytes"] == 6


def test_payloads_are_unpacked_as_far_as_the_codec_can() -> None:
    with postroom.open(":memory:", codec="json") as db:
        db.put(b"good", {"a": [1, "ä"]})
        db.wait(db.core.as_stored().put(b"damaged", b"\xff{"))
        visit = Visit(db, payloads=True)
        good = visit.contents("/key?key=good")["value"]
        assert (good["form"], '"ä"' in good["text"]) == ("value", True)
        damaged = visit.contents("/key?key=damaged")["value"]
        assert (damaged["form"], "ff 7b" in damaged["text"]) == ("damaged", True)
        assert visit.page("/keys")


def test_large_values_are_cut(visit: Visit) -> None:
    visit.db.put(b"large", b"x" * 1_000_000)
    found = visit.contents("/key?key=large")["value"]
    assert (len(found["text"]), found["cut"], found["bytes"]) == (SHOWN_BYTES_MAX, True, 1_000_000)
    visit.db.put(b"large", bytes(1_000_000))
    assert len(visit.contents("/key?key=large")["value"]["text"]) <= SHOWN_BYTES_MAX


@pytest.mark.parametrize(
    "path",
    [
        "/keys?at=yesterday", "/keys?at=0", "/keys?at=99999999999999999999", "/keys?limit=0",
        "/keys?limit=-1", "/trace", "/keys?limit=1000000", "/key?key_hex=zz",
        "/queue", "/queue?queue=none", "/queue?queue=mail&state=lost", "/message?queue=none&id=a",
        "/inboxes?after_hex=0",
        "/keys?prefix=" + "x" * 9000,
    ],
)  # fmt: skip
def test_wrong_parameters_are_told(visit: Visit, path: str) -> None:
    for address in (path, f"/api{path}"):
        answer = visit.client.get(address)
        assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


def test_an_empty_store_has_all_pages() -> None:
    with postroom.open(":memory:") as db:
        visit = Visit(db)
        for page in PAGES:
            if page.title and page.path not in {"/queue", "/message", "/trace"}:
                assert visit.page(page.path)


def test_pages_of_a_mounted_application_link_to_it() -> None:

    with postroom.open(":memory:") as db:
        outer = Starlette(routes=[Mount("/ops/postroom", postroom.web.app(db))])
        client = TestClient(outer)
        page = client.get("/ops/postroom/").text
        addresses = re.findall(r'(?:href|src|data-chart|hx-get)="([^"#]*)"', page)
        assert len(addresses) > 10
        for address in addresses:
            assert address.startswith("/ops/postroom/"), address
            assert client.get(address).status_code == 200, address
