"""The commands about queues, and the one that runs a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import postroom
from postroom.cli.application import app
from postroom.cli.queues import ended_messages
from tests.cli.commands import failed_with

COMMANDS = {
    "list", "create", "update", "pause", "resume", "drop", "show", "tail", "enqueue", "cancel",
    "replay", "reschedule", "result", "schedule", "schedules", "unschedule",
}  # fmt: skip


END_SECONDS = 120.0
"""The longest time that a process takes to start and to end, on whatever machine."""


class Shell:
    """A shell that runs ``postroom queue`` on one store, in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runner = CliRunner()

    def __call__(self, command: str, *arguments: str, **options: Any) -> Result:
        given = ["queue", command, "--path", str(self.path), *arguments]
        return self._runner.invoke(app, given, **options)

    def lines(self, command: str, *arguments: str) -> list[str]:
        result = self(command, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def records(self, command: str, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(command, "--json", *arguments)]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "store")
    shell.lines("create", "emails", "--max-attempts", "2", "--ack-wait", "60")
    return shell


def test_help_lists_the_commands() -> None:
    shown = CliRunner().invoke(app, ["queue", "--help"])
    assert shown.exit_code == 0
    for command in COMMANDS:
        assert command in shown.output
        assert CliRunner().invoke(app, ["queue", command, "--help"]).exit_code == 0


def test_queues(shell: Shell) -> None:
    (made,) = shell.records("create", "jobs", "--order", "group", "--archive")
    assert made["settings"]["order"] == "group"
    assert made["settings"]["archive"] is True
    assert shell.lines("list") == ["emails\t0\t0\t0\t0\t", "jobs\t0\t0\t0\t0\t"]
    (changed,) = shell.records("update", "emails", "--max-attempts", "0", "--max-rate", "7")
    assert changed["settings"]["max_attempts"] is None
    assert changed["settings"]["max_rate"] == 7
    assert changed["settings"]["ack_wait"] == 60
    shell.lines("pause", "jobs")
    assert [each["paused"] for each in shell.records("list")] == [False, True]
    shell.lines("resume", "jobs")
    assert shell("drop", "jobs", input="n\n").exit_code == 1
    assert len(shell.lines("list")) == 2
    shell.lines("drop", "jobs", "--yes")
    assert len(shell.lines("list")) == 1


def test_a_question_that_a_person_leaves_ends_the_command_as_interrupted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaves(question: str, **_: object) -> bool:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", leaves)
    assert shell("drop", "emails").exit_code == 130
    assert shell.lines("list")


def test_an_error_names_the_commands_that_help(shell: Shell) -> None:
    missing = shell("enqueue", "jobs", "x")
    assert missing.exit_code == 1
    assert (
        "make it with 'postroom queue create', or look at 'postroom queue list'" in missing.output
    )
    assert "'postroom queue update' changes settings" in shell("create", "emails").output


def test_messages(shell: Shell) -> None:
    (made,) = shell.lines("enqueue", "emails", "hello")
    assert len(made) == 32
    assert shell.lines("enqueue", "emails", "later", "--id", "i", "--delay", "60") == ["i"]
    assert shell("enqueue", "emails", "twice", "--id", "i").exit_code == 1
    assert shell("enqueue", "emails", "x", "--priority", "500").exit_code == 2
    by_state = {
        each["id"]: each["state"] for each in shell.records("show", "emails", "--state", "live")
    }
    assert by_state == {made: "ready", "i": "scheduled"}
    (shown,) = shell.records("show", "emails", "--id", "i")
    assert shown["payload"] == "later"
    assert shell.records("show", "emails")[0]["stats"]["scheduled"] == 1
    assert any("ack_wait" in line for line in shell.lines("show", "emails"))
    assert shell.records("cancel", "emails", "i") == [{"cancelled": 1, "gone": 0}]
    gone = shell("cancel", "emails", "i")
    assert gone.exit_code == 1
    assert "0 cancelled" in gone.stderr
    living = shell("replay", "emails", made)
    assert living.exit_code == 1
    assert "0 replayed; 1 not dead, or not there" in living.stderr


def test_dead_letters_and_what_has_ended(shell: Shell) -> None:
    for each in "abc":
        shell.lines("enqueue", "emails", each, "--id", each, "--kind", "k")
    with postroom.open(str(shell.path)) as db:
        a, b, c = db.queue("emails").claim(3)
        a.acknowledge()
        b.reject(dead=True, reason="no\tuse")
        c.reject(dead=True)
    ended = shell.lines("tail", "emails", "--ago", "600", "--limit", "3")
    assert [line.split("\t")[:3] for line in ended] == [
        ["a", "k", "done"], ["b", "k", "dead"], ["c", "k", "dead"]
    ]  # fmt: skip
    assert ended[1].endswith("no\\tuse")
    assert [each["id"] for each in shell.records("show", "emails", "--state", "dead")] == ["b", "c"]
    assert shell.records("replay", "emails", "b") == [{"replayed": 1, "gone": 0}]
    assert shell.records("replay", "emails", "all") == [{"replayed": 1, "gone": 0}]
    assert shell("replay", "emails", "b").exit_code == 1
    assert len(shell.lines("show", "emails", "--state", "ready")) == 2


def test_tail_misses_nothing_that_ends_while_it_looks(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read which messages are done; then one is, and another one dies later."""
    real, looked = postroom.Queue.scan, False

    def scan(queue: postroom.Queue, state: Any, *given: Any, **options: Any) -> Iterator[Any]:
        nonlocal looked
        if state == "archived" and not looked:
            looked = True
            first, second = queue.claim(2)
            first.acknowledge()
            second.reject(dead=True)
        return real(queue, state, *given, **options)

    def pause(_: float) -> None:
        pauses.append(None)
        if len(pauses) > 3:
            raise KeyboardInterrupt

    pauses: list[None] = []
    for name in "ab":
        shell.lines("enqueue", "emails", name, "--id", name)
    monkeypatch.setattr(postroom.Queue, "scan", scan)
    monkeypatch.setattr("postroom.cli.queues.time.sleep", pause)
    with postroom.open(shell.path) as db:
        ended = islice(ended_messages(db, db.queue("emails"), 60.0, follow=True), 2)
        assert [message.id for message in ended] == ["a", "b"]


def test_tail_of_a_folder_prints_what_has_ended_and_exits(shell: Shell) -> None:
    shell.lines("enqueue", "emails", "payload", "--id", "a")
    assert shell.lines("tail", "emails") == []
    with postroom.open(shell.path) as db:
        (message,) = db.queue("emails").claim(1)
        message.acknowledge()
    assert [line.split("\t")[0] for line in shell.lines("tail", "emails")] == ["a"]


def test_a_schedule_is_made_listed_replaced_and_removed(shell: Shell) -> None:
    shell.lines(
        "schedule", "emails", "nightly", "0 3 * * *", "report", "--timezone", "Europe/Berlin"
    )
    assert shell.lines("schedules", "emails") == ["nightly\t0 3 * * *\tEurope/Berlin\t\treport"]
    shell.lines("schedule", "emails", "nightly", "5 * * * *", "hourly", "--kind", "k")
    (record,) = shell.records("schedules", "emails")
    assert (record["cron"], record["kind"], record["payload"]) == ("5 * * * *", "k", "hourly")
    wrong = shell("schedule", "emails", "bad", "every hour", "x")
    assert wrong.exit_code == 1
    assert "every hour" in wrong.stderr
    shell.lines("unschedule", "emails", "nightly")
    gone = shell("unschedule", "emails", "nightly")
    assert gone.exit_code == 1
    assert "no schedule 'nightly'" in gone.stderr
    assert shell.lines("schedules", "emails") == []


def test_a_message_is_rescheduled_by_its_id(shell: Shell) -> None:
    shell.lines("enqueue", "emails", "payload", "--id", "a", "--delay", "3600")
    assert shell.records("reschedule", "emails", "a") == [{"rescheduled": 1, "gone": 0}]
    assert len(shell.lines("show", "emails", "--state", "ready")) == 1
    shell.lines("reschedule", "emails", "a", "--delay", "60")
    assert len(shell.lines("show", "emails", "--state", "scheduled")) == 1
    missing = shell("reschedule", "emails", "b")
    assert missing.exit_code == 1
    assert "0 rescheduled; 1 held, done, or not there" in missing.stderr


def test_a_result_is_printed_and_a_failure_with_its_traceback(shell: Shell) -> None:
    with postroom.open(shell.path) as db:
        worker = postroom.Worker(db)

        @worker.task("emails", keep_result=60)
        def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> bytes:
            if message.payload == b"bad":
                raise postroom.Discard("no \x1b[31maddress")
            return message.payload.upper()

        with db.begin() as tx:
            for name in ("good", "bad"):
                task.enqueue(tx, name.encode(), id=name)
        worker.run_until_idle()
    assert shell.lines("result", "emails", "good", "--wait", "1") == ["GOOD"]
    assert shell.records("result", "emails", "good") == [{"id": "good", "result": "GOOD"}]
    failed = shell("result", "emails", "bad")
    assert failed.exit_code == 1
    assert "in task" in failed.stderr
    assert "\x1b" not in failed.stderr
    shell.lines("enqueue", "emails", "later", "--id", "later")
    assert shell("result", "emails", "later", "--wait", "0.01").exit_code == 1


@pytest.mark.parametrize("answer", ["n\n", ""], ids=["no", "no terminal"])
def test_a_queue_is_dropped_only_after_a_yes(shell: Shell, answer: str) -> None:
    result = shell("drop", "emails", input=answer)
    assert failed_with(result, 1, "nothing was changed", "give --yes")
    assert shell("drop", "emails", input="y\n").exit_code == 0
    assert shell.lines("list") == []


def test_a_payload_of_two_hundred_kilobytes_comes_from_standard_input(shell: Shell) -> None:
    shell.lines("create", "large")
    assert shell("enqueue", "large", "-", "--id", "a", input="x" * 200_000).exit_code == 0
    (message,) = shell.records("show", "large", "--id", "a")
    assert message["payload"] == "x" * 200_000


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "nothing"), 1, "nothing"),
        (("show", "emails", "--state", "fired"), 2, "fired"),
        (("show", "emails", "--id", "z"), 1, "no message"),
        (("create", "emails"), 1, "ack_wait"),
        (("create", "bad", "--batch-size", "0"), 1, "batch_size"),
        (("update", "emails"), 2, "give a setting to change"),
        (("update", "emails", "--min-backoff", "5", "--max-backoff", "1"), 1, "max_backoff"),
        (("pause", "nothing"), 1, "nothing"),
        (("tail", "nothing"), 1, "nothing"),
        (("enqueue", "nothing", "x"), 1, "nothing"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_errors(shell: Shell, arguments: tuple[str, ...], code: int, says: str) -> None:
    result = shell(*arguments)
    assert result.exit_code == code, result.output
    assert says in result.stderr


# --- worker

APPLICATION = """
import postroom
import postroom.aio

worker = postroom.Worker()

@worker.task("emails", "welcome")
def welcome(message, tx):
    tx.put(b"welcomed/" + message.payload, b"yes")
    print("welcomed", flush=True)

asynchronous = postroom.aio.Worker()

@asynchronous.task("emails", "welcome")
async def welcome_too(message, tx):
    tx.put(b"welcomed/" + message.payload, b"yes")
    print("welcomed", flush=True)

empty = postroom.Worker()
other = 1
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "postroom", "worker", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["worker", "asynchronous"])
def test_a_worker_works_until_it_is_told_to_stop(shell: Shell, tmp_path: Path, name: str) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    shell.lines("enqueue", "emails", "alice", "--kind", "welcome")
    with start(tmp_path, f"app:{name}", "--path", str(shell.path), "--concurrency", "2") as worker:
        watchdog = threading.Timer(END_SECONDS, worker.kill)
        watchdog.start()
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert worker.stderr.readline() == "ready\n"
        assert worker.stdout.readline() == "welcomed\n"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(END_SECONDS) == 0
        watchdog.cancel()
        assert worker.stderr.read() == ""
    with postroom.open(str(shell.path)) as db:
        assert db.get(b"welcomed/alice") == b"yes"
        assert db.queue("emails").stats().acknowledged == 1


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("app",), 2, "MODULE:NAME"),
        (("missing:worker",), 2, "no module"),
        (("app:other",), 2, "no worker"),
        (("broken:worker",), 1, "'broken' cannot be imported: SyntaxError: "),
        (("needs:worker",), 1, "ModuleNotFoundError: No module named 'absent'"),
        (("app:worker", "--codec", "yaml"), 2, "'yaml' is neither msgpack nor json"),
        (("app:worker",), 1, "no database"),
        (("app:empty",), 1, "no tasks"),
        (("app:empty", "--path", "nowhere"), 1, "no tasks"),
        (("app:worker", "--path", "nowhere"), 1, "no store in 'nowhere'"),
        (("app:asynchronous", "--path", "nowhere"), 1, "no store in 'nowhere'"),
        (("app:worker", "--path", "nowhere", "--queues", "x"), 1, "'x'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else None,
)
def test_a_worker_that_cannot_be(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "broken.py").write_text("this is no program")
    (tmp_path / "needs.py").write_text("import absent")
    with start(tmp_path, *arguments) as worker:
        _, errors = worker.communicate(timeout=END_SECONDS)
    assert worker.returncode == code, errors
    assert says in errors
    assert "Traceback" not in errors
    assert "ready" not in errors.splitlines()
    assert not (tmp_path / "nowhere").exists()


def test_a_worker_without_its_queue_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    with postroom.open(tmp_path / "store") as db:
        db.put(b"key", b"value")
    with start(tmp_path, "app:worker", "--path", "store") as worker:
        _, errors = worker.communicate(timeout=END_SECONDS)
    assert worker.returncode == 1, errors
    assert "no queue 'emails'" in errors
