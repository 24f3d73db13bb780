"""Actions change the store for those who may, and for forms of the pages only."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator

import pytest
from starlette.requests import HTTPConnection

import postroom
from postroom.web.actions import ACTIONS
from postroom.web.limits import BODY_BYTES_MAX, CHOSEN_MAX, SESSION_SECONDS_MAX, SESSIONS_MAX
from postroom.web.visitors import ROLES, Visitors
from tests.web.visits import Visit, filled

TOKENS = {f"token of {role}": (role, "") for role in ROLES}


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with filled() as db:
        yield db


def letter(db: postroom.Database) -> str:
    (found,) = db.dead_letters()
    return found.id


def test_chosen_dead_letters_are_discarded(db: postroom.Database) -> None:
    visit = Visit(db)
    answer = visit.act("discard", letter(db))
    assert answer.status_code == 200
    assert "1 dead letters were given up for good." in answer.text
    assert db.dead_letters() == []


def test_chosen_dead_letters_are_tried_again(db: postroom.Database) -> None:
    db.delete(b"text")
    assert Visit(db).act("replay", letter(db)).status_code == 200
    db.drain()
    assert postroom.integer(db.get(b"text")) == 1


def test_a_scheduled_message_is_cancelled(db: postroom.Database) -> None:
    (found,) = db.scheduled()
    assert Visit(db).act("cancel", found.id).status_code == 200
    assert db.scheduled() == []


def test_messages_of_a_queue_are_tried_again_or_cancelled(db: postroom.Database) -> None:
    visit, queue = Visit(db), db.queue("mail")
    name = f"{b'dead'.hex()}:welcome"
    assert "1 messages" in visit.act("queue-replay", name, queue="mail").text
    assert queue.get("dead").state == "ready"
    assert "1 messages" in visit.act("queue-cancel", name, queue="mail").text
    assert queue.get("dead") is None


def test_a_queue_is_paused_and_goes_on(db: postroom.Database) -> None:
    visit = Visit(db)
    assert visit.act("queue-pause", queue="mail").status_code == 200
    assert db.queue("mail").info().paused
    assert 'action="/actions/queue-resume"' in visit.page("/queue?queue=mail")
    assert visit.act("queue-resume", queue="mail").status_code == 200
    assert not db.queue("mail").info().paused


@pytest.mark.parametrize("proof", ["", "wrong", "ä"])
def test_a_form_of_another_page_changes_nothing(db: postroom.Database, proof: str) -> None:
    for token in (None, "token of admin"):
        visit = Visit(db, token=token, client_of=TOKENS.get if token else None)
        assert visit.act("discard", letter(db), proof=proof).status_code == 403
    assert letter(db)


def test_the_proof_of_another_session_changes_nothing(db: postroom.Database) -> None:
    one = Visit(db, token="token of admin", client_of=TOKENS.get)
    one.client.post("/login", data={"token": "token of admin"})
    before = one.proof
    one.client.post("/login", data={"token": "token of admin"})
    assert one.proof != before
    assert one.act("discard", letter(db), proof=before).status_code == 403
    assert letter(db)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ROLES)
def test_each_action_needs_its_right(db: postroom.Database, action: str, role: str) -> None:
    ids = defaultdict(lambda: f"{b'dead'.hex()}:welcome")
    ids |= {"replay": letter(db), "discard": letter(db), "cancel": db.scheduled()[0].id}
    visit = Visit(db, token=f"token of {role}", client_of=TOKENS.get)
    answer = visit.act(action, ids[action], queue="mail", proof=visit.proof)
    assert answer.status_code == (200 if role in {"write", "admin"} else 403), answer.text
    assert ("lacks the right" in answer.text) == (role in {"none", "read"})


def test_a_reader_is_shown_no_buttons(db: postroom.Database) -> None:
    page = Visit(db, token="token of read", client_of=TOKENS.get).page("/dead-letters")
    assert "formaction" not in page
    assert "formaction" in Visit(db, token="token of write", client_of=TOKENS.get).page(
        "/dead-letters"
    )


def test_visitors_without_a_token_learn_nothing(db: postroom.Database) -> None:
    visit = Visit(db, client_of=TOKENS.get)
    answer = visit.client.get("/queue?queue=mail")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert visit.client.get("/api/queues").status_code == 401
    assert visit.client.get("/api/openapi.json").status_code == 401
    assert visit.client.post("/api/actions/discard", json={"ids": []}).status_code == 401
    assert visit.client.post("/login", data={"token": "guessed"}).status_code == 403
    assert visit.client.get("/api/queues", headers={"authorization": "Bearer x"}).status_code == 401


def test_programs_send_their_token_with_each_request(db: postroom.Database) -> None:
    visit, found = Visit(db, client_of=TOKENS.get), letter(db)
    writer = {"authorization": "Bearer token of write"}
    assert visit.client.get("/api/queues", headers=writer).status_code == 200
    answer = visit.client.post("/api/actions/discard", json={"ids": [found]}, headers=writer)
    assert answer.json() == {"done": "1 dead letters were given up for good.", "number": 1}


def test_a_token_that_is_taken_back_ends_its_sessions(db: postroom.Database) -> None:
    tokens = dict(TOKENS)
    visit = Visit(db, token="token of read", client_of=tokens.get)
    assert visit.page("/")
    del tokens["token of read"]
    assert visit.client.get("/").status_code == 303


def test_a_session_ends_when_its_visitor_logs_out(db: postroom.Database) -> None:
    visit = Visit(db, token="token of read", client_of=TOKENS.get)
    assert visit.client.post("/logout", data={"proof": "wrong"}).status_code == 303
    assert visit.client.get("/").status_code == 200
    visit.client.post("/logout", data={"proof": visit.proof})
    assert visit.client.get("/").status_code == 303


def test_sessions_are_bounded_and_end() -> None:
    now = [0.0]
    visitors = Visitors(TOKENS.get, lambda: now[0])
    names = [visitors.begin("token of read") for _ in range(SESSIONS_MAX + 10)]
    assert len(visitors._sessions) == SESSIONS_MAX
    assert names[0] not in visitors._sessions
    now[0] = SESSION_SECONDS_MAX + 1
    browser = HTTPConnection({
        "type": "http", "headers": [(b"cookie", f"postroom_session={names[-1]}".encode())]
    })  # fmt: skip
    assert visitors.of(browser) is None
    now[0] = 0.0
    assert visitors.of(browser) is not None


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x" * (BODY_BYTES_MAX + 1), "application/x-www-form-urlencoded", 413),
        (b"\xff\xfe", "application/x-www-form-urlencoded", 400),
        (b"{", "application/json", 400), (b"[1]", "application/json", 400),
        (b'{"ids": [1]}', "application/json", 400), (b"[" * 60_000, "application/json", 400),
        (b'{"ids": {"a": 1}}', "application/json", 400),
    ],
)  # fmt: skip
def test_malformed_forms_are_told(
    db: postroom.Database, body: bytes, kind: str, status: int
) -> None:
    for path in ("/actions/discard", "/api/actions/discard"):
        answer = Visit(db).client.post(path, content=body, headers={"content-type": kind})
        assert answer.status_code == status, answer.text
    assert letter(db)


@pytest.mark.parametrize(
    ("action", "ids", "queue"),
    [
        ("discard", [], ""), ("discard", ["no id"], ""), ("replay", ["x"] * (CHOSEN_MAX + 1), ""),
        ("queue-cancel", ["zz"], "mail"), ("queue-cancel", ["00"], ""), ("queue-pause", [], ""),
        ("queue-pause", [], "none"), ("cancel", ["no id"], ""),
    ],
)  # fmt: skip
def test_wrong_choices_change_nothing(
    db: postroom.Database, action: str, ids: list[str], queue: str
) -> None:
    answer = Visit(db).act(action, *ids, queue=queue)
    assert answer.status_code == 400, answer.text
    assert letter(db)


def test_an_unknown_action_is_told(db: postroom.Database) -> None:
    assert Visit(db).act("drop-everything", "00").status_code == 404


def test_actions_are_logged_with_their_outcome(
    db: postroom.Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "postroom.web.actions")
    visit = Visit(db)
    proof = visit.proof
    visit.act("discard", letter(db), proof=proof)
    visit.act("discard", "no id", proof=proof)
    visit.act("discard", "00", proof="wrong")
    told = [record.message for record in caplog.records]
    assert len(told) == 3, told
    assert "done: 1 by discard" in told[0]
    assert "failed: discard" in told[1]
    assert "refused: discard" in told[2]


def test_rights_are_shown_to_admins_only(db: postroom.Database) -> None:
    db.access.grant("shop<b>", "read,send", b"shop/")
    db.access.grant("mailer", "work", queue="mail")
    reader = Visit(db, token="token of read", client_of=TOKENS.get)
    assert reader.client.get("/access").status_code == 403
    assert reader.client.get("/api/access").status_code == 403
    assert "/access" not in reader.page("/")
    admin = Visit(db, token="token of admin", client_of=TOKENS.get)
    rows = admin.contents("/access")["grants"]["rows"]
    assert [(each["name"], each["verbs"], each["queue"]) for each in rows] == [
        ("mailer", ["work"], "mail"), ("shop<b>", ["read", "send"], None),
    ]  # fmt: skip
    page = admin.page("/access")
    assert "shop&lt;b&gt;" in page
    assert "granted" in page
