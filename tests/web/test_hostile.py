"""Names, payloads and reasons that would run in a page that does not escape them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest

import postroom
from postroom.web.table import PAGES
from tests.web.visits import Visit

TEXT = """"' onmouseover=alert(1) x='><script>alert(1)</script>{{ 'y'*9 }}</pre></textarea>"""
RAW, QUOTED = TEXT.encode(), quote(TEXT)
CLIENTS = {"of mallory": ("none", TEXT), "of ops": ("admin", TEXT)}
PATHS = [
    "/", "/inboxes", f"/inboxes?prefix={QUOTED}", f"/inbox?key={QUOTED}", "/queues",
    f"/queue?queue={QUOTED}", f"/queue?queue={QUOTED}&state=dead",
    f"/queue?queue={QUOTED}&state=leased",
    f"/message?queue={QUOTED}&id={QUOTED}&kind={QUOTED}", f"/message?queue={QUOTED}&id=none",
    f"/trace?id={QUOTED}", "/workers", "/dead-letters", f"/dead-letters?filter={QUOTED}",
    "/scheduled", "/keys", f"/keys?prefix={QUOTED}", f"/key?key={QUOTED}", "/cluster", "/access",
]  # fmt: skip
REFUSED = [
    f"/queue?queue=no{QUOTED}", f"/keys?at={QUOTED}", f"/keys?limit={QUOTED}",
    f"/keys?prefix_hex={QUOTED}", f"/queue?queue={QUOTED}&state={QUOTED}",
]  # fmt: skip
ELEMENTS = {
    "a", "b", "body", "button", "code", "dd", "details", "dl", "dt", "div", "form", "h1", "h2",
    "head", "header", "html", "input", "label", "link", "main", "meta", "nav", "p", "pre", "script",
    "section", "span", "summary", "table", "tbody", "td", "th", "thead", "title", "tr",
}  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page, as a browser finds them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    """Return a store in which everything that clients name is hostile."""
    with postroom.open(":memory:") as db:
        queue = db.create_queue(TEXT)
        queue.schedule(TEXT, cron="0 0 1 1 *", payload=RAW, kind=TEXT)
        with db.begin() as tx:
            tx.put(RAW, RAW)
            tx.enqueue_message(RAW, RAW, headers={TEXT: TEXT})
            tx.enqueue_message(RAW, RAW, deliver_at=3600)
            tx.enqueue(TEXT, RAW, id="dead", kind=TEXT, group=TEXT)
            tx.enqueue(TEXT, RAW, id="held", kind=TEXT, group=TEXT)
        dead, _ = sorted(queue.claim(2), key=lambda each: str(each.id))
        dead.reject(dead=True, reason=TEXT)
        with db.begin() as tx:
            (message,) = tx.reap_queue(RAW)
            tx.bury([message], TEXT)
            tx.enqueue(TEXT, RAW, id=TEXT, kind=TEXT, group=TEXT, headers={TEXT: TEXT})
            tx.enqueue_message(RAW, RAW, headers={TEXT: TEXT})
        db.access.grant(TEXT, "read", RAW)
        db.access.grant(TEXT, "read", queue=TEXT)
        db.access.note([(TEXT, "refused", TEXT, 1)])
        yield db


def check(page: str) -> Elements:
    """Check that a page consists of the elements of its templates, and nothing else."""
    elements = Elements(page)
    for tag, attributes in elements.found:
        assert tag in ELEMENTS, tag
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        assert tag != "script" or (attributes.get("src") or "").startswith("/static/")
        for name in ("href", "action", "formaction", "src", "hx-get", "data-chart"):
            assert (attributes.get(name) or "/").startswith(("/", "#")), attributes
    assert sum(tag == "script" for tag, _ in elements.found) == 3
    assert "y" * 9 not in elements.text, "no template is made of it"
    return elements


@pytest.mark.parametrize("path", PATHS)
def test_hostile_texts_add_no_element_and_no_attribute(db: postroom.Database, path: str) -> None:
    visit = Visit(db, payloads=True)
    elements = check(visit.page(path))
    bare = {"/", "/cluster", f"/message?queue={QUOTED}&id=none"}
    assert path in bare or TEXT[:20] in elements.text + str(elements.found), "it is shown as text"


@pytest.mark.parametrize("path", REFUSED)
def test_refusals_add_none_either(db: postroom.Database, path: str) -> None:
    answer = Visit(db).client.get(path)
    assert answer.status_code == 400
    check(answer.text)


@pytest.mark.parametrize("token", CLIENTS)
def test_hostile_names_of_tokens_are_shown_as_text(db: postroom.Database, token: str) -> None:
    visit = Visit(db, token=token, client_of=CLIENTS.get)
    for path in PATHS:
        elements = check(visit.client.get(path).text)
        assert f"Log out ({TEXT})" in elements.text
    proof = visit.proof
    for fields in ({"queue": TEXT}, {"queue": TEXT, "proof": TEXT}):
        check(visit.act("queue-pause", TEXT, **({"proof": proof} | fields)).text)
    check(visit.act(quote(TEXT.replace("/", "")), TEXT, proof=proof).text)
    check(visit.client.post("/login", data={"token": TEXT}).text)
    entries = visit.client.get("/access")
    assert entries.status_code == (200 if token == "of ops" else 403)


@pytest.mark.parametrize("path", [*PATHS, *REFUSED, "/chart"])
def test_json_is_never_taken_for_a_page(db: postroom.Database, path: str) -> None:
    for options in ({}, {"token": "of mallory", "client_of": CLIENTS.get}):
        answer = Visit(db, **options).client.get("/api/overview" if path == "/" else f"/api{path}")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.json()


def test_each_page_is_among_these() -> None:
    shown = {path.partition("?")[0] for path in PATHS}
    assert shown == {page.path for page in PAGES if page.title}


# --- paths ----------------------------------------------------------------------------------------


async def raw_status(app: Any, path: str) -> tuple[int, bytes]:
    """Return the answer for a path as it is, which no client has made shorter."""
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"host", b"localhost")], "root_path": "",
        "scheme": "http", "server": ("localhost", 80), "client": ("localhost", 1),
        "http_version": "1.1",
    }  # fmt: skip
    await app(scope, receive, send)
    body = b"".join(each.get("body", b"") for each in told)
    return next(each["status"] for each in told if "status" in each), body


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py", "/static/../../errors.py", "/static//etc/passwd",
        "/static/../../../../../../../../etc/passwd", "/static/..%2fapplication.py",
        "/static/%2e%2e/application.py", "/static/./../application.py", "/static/", "/static",
        "/static/..\\application.py", "/static/site.js/../../application.py",
        "/api/static/../application.py", "/../application.py", "//etc/passwd",
    ],
)  # fmt: skip
def test_paths_lead_to_no_file_outside_of_the_static_ones(db: postroom.Database, path: str) -> None:
    status, body = asyncio.run(raw_status(Visit(db).app, path))
    assert status in {404, 307}, status
    assert b"import" not in body
    assert b"root:" not in body


def test_a_static_file_is_served_by_its_path(db: postroom.Database) -> None:
    assert Visit(db).client.get("/static/site.js").status_code == 200
