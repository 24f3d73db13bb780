"""A store with something of everything, and a browser without a screen that visits its pages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from starlette.testclient import TestClient

import postroom
import postroom.web

HOSTILE = b"<script>alert(1)</script>"
"""A key, an id and a reason that would run in a page that does not escape them."""

PATHS = [
    "/", "/inboxes", "/inbox?key=later", f"/inbox?key_hex={HOSTILE.hex()}", "/queues",
    "/queue?queue=mail", "/queue?queue=mail&state=dead", "/queue?queue=mail&state=leased",
    f"/message?queue=mail&id_hex={HOSTILE.hex()}&kind=welcome", "/message?queue=mail&id=none",
    "/workers", "/dead-letters", "/dead-letters?filter=none", "/scheduled", "/keys",
    "/keys?prefix=order/", f"/key?key_hex={HOSTILE.hex()}", "/cluster", "/access",
]  # fmt: skip


def filled(**options: Any) -> postroom.Database:
    """Return a store with messages in each state, and with hostile names."""
    db = postroom.open(":memory:", **options)
    db.create_queue("mail")
    with db.begin() as tx:
        tx.put(HOSTILE, b"first")
        tx.put(b"order/1", HOSTILE)
        tx.enqueue_message(HOSTILE, HOSTILE, headers={"by": HOSTILE.decode()})
        tx.enqueue_message(b"later", b"payload of later", deliver_at=timedelta(hours=1))
        tx.enqueue("mail", b"dead", id="dead", kind="welcome")
        tx.enqueue("mail", b"held", id="held", kind="welcome")
    db.put(HOSTILE, b"second")
    db.put(b"text", b"no number")
    with db.begin() as tx:
        tx.enqueue_update(postroom.Increment(b"text"))
    dead, held = sorted(db.queue("mail").claim(2), key=lambda each: str(each.id))
    assert held.id == "held"
    dead.reject(dead=True, reason=HOSTILE.decode())
    with db.begin() as tx:
        tx.enqueue("mail", HOSTILE, id=HOSTILE.decode(), kind="welcome")
        tx.enqueue("mail", b"\x00\x01", id="ready", kind="welcome")
    return db


class Visit:
    """A visitor of the pages of a store.

    Args:
        db: the store.
        token: the token to log in with; ``None``: there are no roles.
        client_of: see :func:`postroom.web.app`.
        options: of :func:`postroom.web.app`.
    """

    def __init__(
        self,
        db: postroom.Database,
        *,
        token: str | None = None,
        client_of: Callable[[str], tuple[str, str] | None] | None = None,
        **options: Any,
    ) -> None:
        self.db = db
        self.app = postroom.web.app(db, client_of=client_of, **options)
        self.client = TestClient(self.app, follow_redirects=False)
        if token is not None:
            assert self.client.post("/login", data={"token": token}).status_code == 303

    def page(self, path: str) -> str:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def contents(self, path: str) -> Any:
        answer = self.client.get("/api/overview" if path == "/" else f"/api{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    @property
    def proof(self) -> str:
        """Return the proof in the forms of the page of a queue."""
        page = self.client.get("/queue?queue=mail").text  # one who may not see it may log out there
        return page.partition('name="proof" value="')[2].partition('"')[0]

    def act(self, name: str, *ids: str, proof: str | None = None, **fields: str) -> Any:
        """Send the form of an action, as a page does."""
        proof = self.proof if proof is None else proof
        form = {"id": list(ids), "proof": proof, **fields}
        return self.client.post(f"/actions/{name}", data=form)
