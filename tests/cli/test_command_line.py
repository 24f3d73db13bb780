"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import postroom
from postroom.cli import main as command_line
from postroom.cli.application import app
from postroom.kv.folder import OWNER_FILE
from postroom.limits import VALUE_BYTES_MAX

COMMANDS = {
    "demo", "serve", "cluster", "status", "remove-node", "rebind-node", "get", "put", "delete",
    "increment", "scan", "watch", "accounting", "send", "peek", "reap", "bury", "inboxes",
    "scheduled", "search",
    "cancel", "dead-letters", "worker", "bench", "forget-position", "gateway", "web", "backup",
    "verify", "restore", "audit-log", "recover", "trace",
}  # fmt: skip


END_SECONDS = 120.0
"""The longest time that a process takes to start and to end, on whatever machine."""


class Shell:
    """A shell that runs commands on one store, in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runner = CliRunner()

    def __call__(self, command: str, *arguments: str) -> Result:
        return self._runner.invoke(app, [command, "--path", str(self.path), *arguments])

    def lines(self, command: str, *arguments: str) -> list[str]:
        result = self(command, *arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def records(self, command: str, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(command, "--json", *arguments)]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "store")


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a real process, as a user's shell does."""
    command = [sys.executable, "-m", "postroom.cli.main", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **options})


def failed_with(result: Result, code: int, *words: str) -> bool:
    """Return whether a command failed so: one line on standard error, nothing else anywhere."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return all(word in result.stderr for word in words)


def test_help_lists_the_commands() -> None:
    listed = {command.name for command in app.registered_commands}
    assert listed == COMMANDS
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert all(command in shown.output for command in COMMANDS)
    for command in COMMANDS:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_services_of_a_store_that_is_only_read_do_not_seem_to_have_failed(shell: Shell) -> None:
    shell.lines("put", "a", "1")
    told = [line for line in shell.lines("status") if "service" in line]
    assert told
    assert not [line for line in told if "pausing" in line]


def test_the_status_of_a_folder_is_that_of_no_cluster(shell: Shell) -> None:
    shell.lines("put", "a", "1")
    told = "\n".join(shell.lines("status"))
    assert "node id" in told
    assert "leader" not in told
    assert "nodes" not in told
    assert "None" not in told


def test_status_shows_positions_of_readers_and_one_can_be_forgotten(shell: Shell) -> None:
    with postroom.open(str(shell.path)) as db:
        at = db.now()
        db.keep_position("orders", at)
        db.keep_position("mails\n", at, seconds=60)
    told = shell.lines("status")
    assert [line for line in told if re.fullmatch(r"position orders: .* s behind, .*T.*", line)]
    assert [line for line in told if line.startswith(r"position mails\n: ")]
    (record,) = shell.records("status")
    assert [each["name"] for each in record["positions"]] == ["mails\n", "orders"]
    assert [each["position"] for each in record["positions"]] == [at, at]
    assert shell.lines("forget-position", "orders") == ["the position 'orders' is forgotten"]
    assert failed_with(shell("forget-position", "orders"), 1, "no position 'orders'")
    assert not [line for line in shell.lines("status") if "orders" in line]


def test_values(shell: Shell) -> None:
    assert shell.lines("put", "colour", "grün") == []
    assert shell.lines("get", "colour") == ["grün"]
    assert shell.records("get", "colour") == [{"key": "colour", "value": "grün"}]
    assert shell.lines("delete", "colour") == []
    assert failed_with(shell("get", "colour"), 1, "colour", "no key")


def test_hexadecimal(shell: Shell) -> None:
    shell.lines("put", "--hex", "00ff", "c3bc0a")
    assert shell.lines("get", "--hex", "00ff") == ["c3bc0a"]
    with postroom.open(str(shell.path)) as db:
        assert db.get(b"\x00\xff") == b"\xc3\xbc\n"
    assert shell("put", "--hex", "xy", "00").exit_code == 2


def test_a_record_is_one_line_whatever_it_holds(shell: Shell) -> None:
    with postroom.open(str(shell.path)) as db:
        db.put(b"k\xff", b"a\tb\nc\x1b\xfe")
    assert shell.lines("scan") == ["k\\xff\ta\\tb\\nc\\x1b\\xfe"]


def test_scan(shell: Shell) -> None:
    for key in ("a/1", "a/2", "b/1", "b/2"):
        shell.lines("put", key, "x")
    assert shell.lines("scan") == ["a/1\tx", "a/2\tx", "b/1\tx", "b/2\tx"]
    assert shell.lines("scan", "a/2", "b/2") == ["a/2\tx", "b/1\tx"]
    assert shell.lines("scan", "--prefix", "b", "--reverse") == ["b/2\tx", "b/1\tx"]
    assert shell.records("scan", "b", "--limit", "1") == [{"key": "b/1", "value": "x"}]
    assert shell("scan", "a", "--prefix", "b").exit_code == 2


def test_messages(shell: Shell) -> None:
    shell.lines("send", "inbox", "one", "--header", "from=test")
    shell.lines("send", "inbox", "two")
    assert shell.lines("peek", "inbox") == ["one", "two"]
    first, second = shell.records("peek", "inbox")
    assert (first["value"], first["headers"], second["headers"]) == ("one", {"from": "test"}, {})
    assert first["sent_at"] <= first["delivered_at"]

    (inbox,) = shell.records("inboxes")
    assert (inbox["key"], inbox["messages"], inbox["oldest"]) == ("inbox", 2, first["sent_at"])
    assert shell.lines("reap", "inbox", "--limit", "1") == ["one"]
    assert shell.lines("reap", "inbox") == ["two"]
    assert shell.lines("reap", "inbox") == []
    assert shell.lines("inboxes") == []


def test_a_message_that_nobody_can_digest(shell: Shell) -> None:
    shell.lines("send", "inbox", "bad")
    shell.lines("send", "inbox", "worse", "--header", "from=test")
    first, second = shell.records("peek", "inbox")
    assert (first["attempts"], first["last_error"]) == (0, "")
    assert failed_with(shell("bury", "inbox", first["id"], "00"), 1, "no message '00'")
    shell.lines("bury", "inbox", second["id"], "--reason", "of no use")
    with postroom.open(shell.path) as db, db.begin() as tx:
        tx.postpone(tx.reap_queue(b"inbox"), 1000, "not\tnow", hold=True)
    (waiting,) = shell.records("scheduled")
    assert (waiting["attempts"], waiting["last_error"]) == (1, "not\tnow")
    assert shell.lines("scheduled")[0].split("\t")[2:] == ["inbox", "bad", "1", "not\\tnow"]
    (letter,) = shell.records("dead-letters")
    assert (letter["key"], letter["attempts"], letter["reason"]) == ("inbox", 1, "of no use")
    assert letter["headers"] == {"from": "test"}
    assert shell.lines("dead-letters")[0].split("\t")[1::2] == ["of no use", "inbox"]
    shell.lines("send", "inbox", "behind")
    (inbox,) = shell.records("inboxes")
    assert inbox["held_up"] is True
    shell.lines("dead-letters", "--replay", "all")
    assert [each["attempts"] for each in shell.records("peek", "inbox")] == [0, 0]


def test_inboxes_of_a_prefix(shell: Shell) -> None:
    shell.lines("send", "a/1", "x")
    shell.lines("send", "b/1", "x")
    assert [record["key"] for record in shell.records("inboxes", "--prefix", "b")] == ["b/1"]


def test_a_later_message_is_not_there_yet(shell: Shell) -> None:
    shell.lines("send", "inbox", "later", "--delay", "3600")
    assert shell.lines("peek", "inbox") == []
    (status,) = shell.records("status")
    assert status["counters"]["pending_messages"] == 1


def bury_two_letters(path: Path) -> None:
    with postroom.open(str(path)) as db:
        db.put(b"count", b"no integer")
        for _ in range(2):
            with db.begin() as tx:
                tx.put(b"source", b"")
                tx.enqueue_update(postroom.Increment(b"count", 1))
            db.drain()


def test_dead_letters(shell: Shell) -> None:
    bury_two_letters(shell.path)
    first, second = shell.records("dead-letters")
    assert "WrongType" in first["reason"]
    assert first["source_key"] == "source"

    shell.lines("dead-letters", "--discard", first["id"])
    shell.lines("delete", "count")
    without_its_range = second["id"][16:]
    shell.lines("dead-letters", "--replay", without_its_range)
    assert shell.lines("get", "--hex", b"count".hex()) == ["0000000000000001"]
    shell.lines("delete", "count")
    bury_two_letters(shell.path)
    first, second = shell.records("dead-letters")
    shell.lines("dead-letters", "--discard", first["id"][16:])
    shell.lines("delete", "count")
    assert [record["id"] for record in shell.records("dead-letters")] == [second["id"]]
    shell.lines("dead-letters", "--replay", "all")
    assert shell.lines("dead-letters") == []
    assert shell.lines("get", "--hex", b"count".hex()) == ["0000000000000001"]
    assert failed_with(shell("dead-letters", "--discard", "00"), 1, "no dead letter")


def test_status(shell: Shell) -> None:
    shell.lines("send", "inbox", "x")
    (record,) = shell.records("status")
    assert record["path"] == str(shell.path)
    assert record["counters"]["delivered"] == 1
    assert any("delivered" in line for line in shell.lines("status"))


@pytest.mark.parametrize(
    ("written", "memory_bytes"),
    [("16MiB", 16 << 20), ("1 GiB", 1 << 30), ("20MB", 20_000_000), ("9000000", 9_000_000)],
)
def test_a_budget_of_memory_is_given_as_a_size(
    shell: Shell, written: str, memory_bytes: int
) -> None:
    shell.lines("put", "a", "1")
    (record,) = shell.records("status", "--memory", written)
    assert record["storage"]["memory_bytes"] == memory_bytes


@pytest.mark.parametrize(
    "command",
    [["get", "k"], ["delete", "k"], ["scan"], ["peek", "k"], ["reap", "k"], ["inboxes"],
     ["dead-letters"], ["status"], ["watch", "k"], ["accounting", "k"], ["scheduled"],
     ["cancel", "00" * 37]],
)  # fmt: skip
def test_a_mistyped_path_makes_no_store(shell: Shell, command: list[str]) -> None:
    assert failed_with(shell(*command), 1, "no store", str(shell.path))
    assert not shell.path.exists()


@pytest.mark.parametrize("job", [["audit"], ["export", "x"], ["load", "x.csv", "--name", "x"]])
def test_a_job_says_what_to_do_about_a_mistyped_path(shell: Shell, job: list[str]) -> None:
    command = ["pipeline", "run", *job, "--path", str(shell.path)]
    assert failed_with(CliRunner().invoke(app, command), 1, "no store", "check --path")
    assert not shell.path.exists()


def test_wrong_usage(shell: Shell) -> None:
    assert CliRunner().invoke(app, ["get", "key"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2
    assert shell("send", "k", "v", "--header", "nothing").exit_code == 2
    assert shell("scan", "--limit", "0").exit_code == 2


def test_a_store_in_use_is_named_in_one_line(shell: Shell) -> None:
    with postroom.open(str(shell.path)):
        assert failed_with(shell("get", "k"), 1, str(shell.path))


def test_a_key_that_is_too_large(shell: Shell) -> None:
    assert failed_with(shell("put", "k" * 9000, "v"), 1, "postroom:", "kkk")


def test_bench_leaves_nothing_behind(shell: Shell) -> None:
    shell.lines("put", "mine", "x")
    rates = shell.records("bench", "--transactions", "50", "--in-flight", "4")
    assert len(rates) == 6
    assert all(rate["per_second"] > 0 for rate in rates)
    assert shell.lines("scan") == ["mine\tx"]
    assert shell.lines("inboxes") == []


@pytest.fixture
def many(shell: Shell) -> Path:
    """Return a store whose scan is larger than the buffer of a pipe."""
    with postroom.open(str(shell.path)) as db, db.begin() as tx:
        for number in range(2000):
            tx.put(b"%06d" % number, bytes(100))
    return shell.path


def test_a_reader_that_leaves_early_causes_no_noise(many: Path) -> None:
    process = start("scan", "--path", str(many))
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline().startswith("000000\t")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=END_SECONDS) == 1


def test_reaped_messages_that_nobody_could_read_stay(shell: Shell) -> None:
    shell.lines("send", "inbox", "precious")
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start("reap", "inbox", "--path", str(shell.path), stdout=write_end)
    os.close(write_end)
    _, noise = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, noise) == (1, "")
    assert shell.lines("peek", "inbox") == ["precious"]


def test_control_c(shell: Shell) -> None:
    shell.lines("put", "k", "v")
    shell.lines("send", "other", "x")
    process = start("demo", "--flights", "10000", "--path", str(shell.path.with_name("demo")))
    assert process.stdout is not None
    process.stdout.readline()  # the first tenth of its work is done
    process.send_signal(signal.SIGINT)
    _, noise = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, noise) == (130, "")


def test_control_c_while_waiting_for_mail(shell: Shell) -> None:
    shell.lines("put", "k", "v")
    process = start("reap", "k", "--wait", "50", "--path", str(shell.path))
    while not _has_open(process, shell.path):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, noise = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, noise) == (130, "")


def _has_open(process: subprocess.Popen[str], path: Path) -> bool:
    """Return whether the process has got as far as having the store open."""
    return (path / OWNER_FILE).read_text().startswith(f"{process.pid} ")


def test_without_its_libraries_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.count('pip install ".[cli]" in a clone') == 1


def test_an_interrupt_while_it_loads_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "find_spec", interrupted)
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    assert stop.value.code == 130


def test_put_reads_a_dash_from_standard_input_byte_for_byte(shell: Shell) -> None:
    given = b"\x00\xff\n" * 100_000
    arguments = ["put", "--path", str(shell.path), "k", "-"]
    assert CliRunner().invoke(app, arguments, input=given).exit_code == 0
    with postroom.open(shell.path) as db:
        assert db.get(b"k") == given
    assert CliRunner().invoke(app, [*arguments, "--hex-value"], input="00ff\n").exit_code == 0
    assert CliRunner().invoke(app, [*arguments[:3], "n", "-", "--int"], input="7\n").exit_code == 0
    with postroom.open(shell.path) as db:
        assert (db.get(b"k"), postroom.integer(db.get(b"n") or b"")) == (b"\x00\xff", 7)


def test_more_on_standard_input_than_a_value_has_room_for_is_refused(shell: Shell) -> None:
    arguments = ["put", "--path", str(shell.path), "k", "-"]
    result = CliRunner().invoke(app, arguments, input=b"x" * (VALUE_BYTES_MAX + 1))
    assert result.exit_code == 1
    assert "value" in result.stderr


def test_status_of_a_folder_tells_the_version_and_the_queues(shell: Shell) -> None:
    shell.lines("put", "k", "v")
    with postroom.open(shell.path) as db:
        db.create_queue("emails")
        with db.begin() as tx:
            tx.enqueue("emails", b"payload")
    (record,) = shell.records("status")
    assert record["version"] == postroom.__version__
    assert [(each["name"], each["ready"]) for each in record["queues"]] == [("emails", 1)]
    lines = shell.lines("status")
    assert "emails\t1\t0\t0\t0\t" in lines
    assert not any("refused" in line for line in lines), "nothing is refused"


def test_status_shows_twenty_queues_and_says_how_many_more_there_are(shell: Shell) -> None:
    with postroom.open(shell.path) as db:
        for number in range(23):
            db.create_queue(f"queue-{number:02}")
    shown = shell.lines("status")
    assert "queue-19\t0\t0\t0\t0\t" in shown
    assert not any(line.startswith("queue-20") for line in shown)
    assert "3 more queues: 'postroom queue list' shows them" in shown
