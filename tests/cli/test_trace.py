"""The command that prints the time line of a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import postroom
from tests.cli.commands import failed_with, invoke, lines, records
from tests.remote.servers import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_the_time_line_of_a_consumed_message_is_printed(server: Server) -> None:
    at = ("--connect", server.address, "--insecure")
    with postroom.connect(server.address, insecure=True) as db:
        with db.begin() as sender:
            sender.enqueue_message(b"inbox", b"secret")
        (message,) = db.peek(b"inbox")
        with db.begin() as reaper:
            reaper.reap_queue(b"inbox")
    first, *events = lines("trace", message.id, *at)
    assert first == f"message {message.id} of inbox: consumed"
    told = [line.split("\t") for line in events]
    assert [each[1] for each in told] == ["sent", "delivered", "consumed"]
    assert [each[2] for each in told] == [sender.id.hex(), "-", reaper.id.hex()]
    (record,) = records("trace", message.id, *at)
    assert record["state"] == "consumed"
    assert [each["what"] for each in record["events"]] == ["sent", "delivered", "consumed"]
    assert record["events"][2]["transaction_id"] == reaper.id.hex()
    assert record["unknown"] == []
    assert "secret" not in str(record)


def test_reasons_cannot_forge_lines(tmp_path: Path) -> None:
    with postroom.open(tmp_path) as db:
        with db.begin() as tx:
            tx.enqueue_message(b"in\nbox", b"1")
        with db.begin() as tx:
            tx.bury(tx.reap_queue(b"in\nbox"), "bad\n\x1b[2Jorder")
        (letter,) = db.dead_letters()
    first, *events = lines("trace", letter.id, "--path", str(tmp_path))
    assert first.endswith(r"of in\nbox: dead")
    assert events[-1].endswith("\tbad\\n\\x1b[2Jorder")


def test_the_queue_of_a_message_is_told(tmp_path: Path) -> None:
    with postroom.open(tmp_path) as db:
        db.create_queue("mail")
        with db.begin() as tx:
            tx.enqueue("mail", b"1", id="order 17")
    (record,) = records("trace", "order 17", "--path", str(tmp_path), "--queue", "mail")
    assert (record["queue"], record["state"], record["id"]) == ("mail", "ready", "order 17")


def test_the_command_says_what_it_does_not_know(tmp_path: Path) -> None:
    with postroom.open(tmp_path) as db, db.begin() as tx:
        tx.put(b"key", b"value")
        tx.enqueue_message(b"inbox", b"1", deliver_at=1000)
    with postroom.open(tmp_path) as db:
        (waiting,) = db.scheduled()
        db.cancel([waiting.id])
    *_, last = lines("trace", waiting.id, "--path", str(tmp_path))
    assert last.startswith("not known: its present place")


def test_an_unknown_id_is_told(tmp_path: Path) -> None:
    with postroom.open(tmp_path):
        pass
    for unknown in ("no such id", "00" * 20):
        result = invoke("trace", unknown, "--path", str(tmp_path))
        assert failed_with(result, 1, f"no message '{unknown}'", "40 hexadecimal digits")
    both = invoke("trace", "id", "--path", str(tmp_path), "--key", "k", "--queue", "q")
    assert failed_with(both, 2, "not both")
    assert failed_with(invoke("trace", "x" * 5000, "--path", str(tmp_path)), 1, "bytes")
