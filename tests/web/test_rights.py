"""Visitors see and do what the store grants to the name of their token, and learn nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.web import rights as web_rights
from postroom.web.actions import ACTIONS
from postroom.web.rights import MAY_NOT_READ
from postroom.web.table import PAGES
from tests.web.visits import HOSTILE, PATHS, Visit, filled

CLIENTS = {"of mara": ("none", "mara"), "of nobody": ("none", ""), "of reader": ("read", "reader")}


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with filled() as db:
        yield db


@pytest.fixture(autouse=True)
def grants_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_rights, "GRANTS_SECONDS", 0.0)


def visited(db: postroom.Database, token: str = "of mara", **options: Any) -> Visit:
    return Visit(db, token=token, client_of=CLIENTS.get, **options)


def answers(db: postroom.Database) -> dict[str, tuple[int, str]]:
    """Return what a visitor without rights gets, without the proofs of its session."""
    visit = visited(db, "of nobody", payloads=True)
    proof, found = visit.proof, {}
    pages = (*PATHS, "/trace?id=held")
    json = ["/api/overview" if path == "/" else f"/api{path}" for path in pages]
    for address in (*pages, *json, "/api/chart", "/api/chart?queue=mail"):
        answer = visit.client.get(address)
        found[address] = answer.status_code, answer.text.replace(proof, "")
    for name in ACTIONS:
        answer = visit.act(name, "64656164:welcome", queue="mail", proof=proof)
        found[name] = answer.status_code, answer.text.replace(proof, "")
    return found


def test_a_visitor_without_rights_learns_nothing(db: postroom.Database) -> None:
    visit = Visit(db, payloads=True)
    for path in PATHS:  # charts have points now
        visit.page(path)
    of_filled = answers(db)
    with postroom.open(":memory:") as empty:
        assert of_filled == answers(empty)
    for address, (_, text) in of_filled.items():
        assert not re.search(r"mail.*ready|second|payload of|held by", text), address
    others = {address for address, (status, _) in of_filled.items() if status != 403}
    assert others == {"/", "/api/overview", "/cluster", "/api/cluster"} | {
        "replay", "discard", "cancel",  # an id that is none is told before anything is asked
    }  # fmt: skip


def test_a_prefix_shows_its_keys_and_no_others(db: postroom.Database) -> None:
    db.access.grant("mara", "read", b"order/")
    visit = visited(db)
    assert [each["key"]["text"] for each in visit.contents("/keys?prefix=order/")["pairs"]] == [
        "order/1"
    ]
    assert visit.contents("/key?key=order/1")["value"]
    assert visit.contents("/inboxes?prefix=order/")["inboxes"] == []
    for path in ("/keys", "/keys?prefix=order", "/key?key=text", "/inbox?key=later", "/queues",
                 f"/key?key_hex={HOSTILE.hex()}", "/queue?queue=mail", "/workers", "/scheduled",
                 "/dead-letters", "/trace?id=held", "/access", "/chart"):  # fmt: skip
        assert visit.client.get(f"/api{path}").status_code == 403, path
    assert "lacks the right" in visit.contents("/")["status"]["unknown"]
    assert f'href="/keys?prefix_hex={b"order/".hex()}"' in visit.page("/")
    assert "keys</a>" in visit.client.get("/keys").text, "a refusal shows what there is"


def test_a_granted_queue_is_shown_and_changed_and_no_other(db: postroom.Database) -> None:
    db.create_queue("other")
    db.access.grant("mara", "read", queue="mail")
    visit = visited(db)
    assert visit.contents("/queue?queue=mail")["numbers"]["ready"] == 2
    assert visit.contents("/message?queue=mail&id=held&kind=welcome")["message"]["life"] == []
    assert "formaction" not in visit.page("/queue?queue=mail")
    assert visit.client.get("/queue?queue=other").status_code == 403
    assert visit.client.get("/queue?queue=none").status_code == 403
    assert visit.client.get("/api/chart?queue=mail").status_code == 200
    assert visit.client.get("/api/chart?queue=other").status_code == 403
    assert visit.act("queue-pause", queue="mail").status_code == 403
    db.access.grant("mara", "write", queue="mail")
    assert "queue-pause" in visit.page("/queue?queue=mail")
    assert visit.act("queue-pause", queue="mail").status_code == 200
    assert visit.act("queue-pause", queue="other").status_code == 403
    assert db.queue("mail").info().paused
    assert not db.queue("other").info().paused


def test_grants_add_to_the_role_of_a_token(db: postroom.Database) -> None:
    db.access.grant("reader", "write", queue="mail")
    visit = visited(db, "of reader")
    assert visit.contents("/queues")["queues"]
    assert visit.act("queue-pause", queue="mail").status_code == 200
    assert visit.act("discard", db.dead_letters()[0].id).status_code == 403


def test_a_right_that_is_taken_back_ends_at_once(db: postroom.Database) -> None:
    db.access.grant("mara", "read", b"order/")
    visit = visited(db)
    assert visit.contents("/key?key=order/1")
    db.access.revoke("mara")
    assert visit.client.get("/api/key?key=order/1").status_code == 403
    assert "What your token may do" not in visit.page("/")


def test_grants_are_read_once_in_their_time(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_rights, "GRANTS_SECONDS", 3600.0)
    visit = visited(db)
    assert visit.client.get("/api/key?key=order/1").status_code == 403
    db.access.grant("mara", "read", b"order/")
    assert visit.client.get("/api/key?key=order/1").status_code == 403


def test_payloads_are_shown_to_those_who_administer_everything(db: postroom.Database) -> None:
    db.access.grant("mara", "read", b"order/")
    visit = visited(db)
    assert visit.contents("/key?key=order/1")["value"]["form"] == "hidden"
    db.access.grant("mara", "admin")
    assert visit.contents("/key?key=order/1")["value"]["form"] == "hidden"
    db.access.grant("mara", "admin", queue="*")
    assert visit.contents("/key?key=order/1")["value"]["form"] == "text"
    assert visit.contents("/access")["grants"]["count"] == 3


def test_names_of_grants_are_escaped(db: postroom.Database) -> None:
    db.access.grant("mara", "read", HOSTILE)
    db.access.grant("mara", "read", queue=HOSTILE.decode())
    page = visited(db).page("/")
    assert HOSTILE.decode() not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2


def test_pages_that_may_not_read_the_grants_let_no_token_in(db: postroom.Database) -> None:
    limited = visited(_Limited(db), "of reader")
    answer = limited.client.get("/api/queues")
    assert answer.status_code == 503
    assert answer.json()["error"] == MAY_NOT_READ
    assert limited.client.get("/").status_code == 503


class _Limited(postroom.Database):
    """A database of a client that is no administrator."""

    def __init__(self, db: postroom.Database) -> None:
        super().__init__(db._blocking, db.core)

    def on_loop(self, threads: Any) -> Any:
        rights = self._core.access.rights("write", [])
        return super().on_loop(threads).as_client(rights)


def test_each_page_reads_the_store_through_the_rights_of_its_visitor() -> None:
    folder = Path(web_rights.__file__).parent / "reading"
    for file in folder.glob("*.py"):
        assert not re.search(r"OpenStore\(|_open\(|core\b", file.read_text()), file.name
    assert {page.path for page in PAGES if page.verb} == {"/access", "/chart"}
