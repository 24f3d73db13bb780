"""Bytes in and out of the command line: nothing is lost, and what is printed is told."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from typer.testing import CliRunner

import postroom
from postroom.cli.application import app
from postroom.cli.output import Notation, json_headers
from postroom.server.loopback import LoopbackServer
from tests.cli.test_command_line import END_SECONDS, Shell, failed_with, start

AS_JSON = Notation(as_json=True)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "store")


def from_json(told: Any) -> bytes | int | None:
    """Read JSON as the page on operating tells it."""
    if isinstance(told, str):
        return told.encode()
    if isinstance(told, dict):
        return bytes.fromhex(told["hex"])
    assert told is None or isinstance(told, int)
    return told


@given(some.one_of(some.binary(), some.text().map(str.encode), some.integers(-(2**63), 2**63 - 1)))
def test_json_tells_every_value_apart(value: bytes | int) -> None:
    told = json.loads(json.dumps(AS_JSON.json_value(value), allow_nan=False))
    assert from_json(told) == value
    if isinstance(value, bytes):
        assert from_json(json.loads(json.dumps(AS_JSON.json_key(value)))) == value


def test_json_tells_every_header() -> None:
    headers = {
        "text": "é", "bytes": b"\xff", "ascii": b"a", "n": 1, "x": 1.5, "no": None, "yes": True,
        "nan": math.nan, "inf": -math.inf,
    }  # fmt: skip
    assert json.loads(json.dumps(json_headers(headers), allow_nan=False)) == {
        **headers, "bytes": {"hex": "ff"}, "ascii": "a", "nan": {"float": "nan"},
        "inf": {"float": "-inf"},
    }  # fmt: skip


def test_a_scan_as_json_loses_nothing(shell: Shell) -> None:
    pairs = {b"k\xff": b"\\xff", b"k\\xff": b"\xff", b"n": 7, b"t": b"{}", b"u": "é".encode()}
    with postroom.open(shell.path) as db:
        for key, value in pairs.items():
            if isinstance(value, int):
                db.increment(key, value)
            else:
                db.put(key, value)
    read = {from_json(each["key"]): from_json(each["value"]) for each in shell.records("scan")}
    assert read == pairs
    read = {
        bytes.fromhex(each["key"]): bytes.fromhex(each["value"])
        for each in shell.records("scan", "--hex")
    }
    assert read == {**pairs, b"n": (7).to_bytes(8, "big")}


def test_messages_with_bytes_in_their_headers_are_printed(shell: Shell) -> None:
    with postroom.open(shell.path) as db, db.begin() as tx:
        tx.enqueue_message(b"in\xff", b"\xfe", headers={"trace": b"\xff\x00", "x": math.inf})
    (message,) = shell.records("peek", "--hex-key", "696eff")
    assert (message["key"], message["value"]) == ("696eff", {"hex": "fe"})
    assert message["headers"] == {"trace": {"hex": "ff00"}, "x": {"float": "inf"}}
    (inbox,) = shell.records("inboxes")
    assert inbox["key"] == {"hex": "696eff"}


def test_keys_and_values_have_notations_of_their_own(shell: Shell) -> None:
    shell.lines("put", "--hex-key", "00ff", "text")
    shell.lines("put", "--hex-value", "key", "00ff")
    assert shell.lines("scan", "--hex-key") == ["00ff\ttext", "6b6579\t\\x00\\xff"]
    assert shell.lines("scan", "--hex-value") == ["\\x00\\xff\t74657874", "key\t00ff"]
    assert shell.lines("get", "--hex-key", "00ff") == ["text"]
    assert shell.lines("get", "--hex-value", "key") == ["00ff"]
    assert shell("put", "--hex-value", "key", "no digits").exit_code == 2
    assert shell("put", "--hex-key", "key", "text").exit_code == 2


def test_counters(shell: Shell) -> None:
    assert shell.lines("increment", "n") == ["1"]
    assert shell.lines("increment", "n", "-5") == ["-4"]
    assert shell.lines("get", "n") == ["-4"]
    assert shell.records("increment", "n", "4") == [{"key": "n", "value": 0}]
    shell.lines("put", "--int", "n", "--", "-7")
    assert shell.lines("increment", "n") == ["-6"]
    assert shell.lines("scan") == ["n\t-6"]
    with postroom.open(shell.path, codec="json") as db:
        assert db.get(b"n") == -6
    assert shell("put", "--int", "n", str(2**63)).exit_code == 2
    assert shell("put", "--int", "n", "x").exit_code == 2
    assert shell("put", "--int", "--hex", "00", "1").exit_code == 2
    shell.lines("put", "text", "text")
    assert failed_with(shell("increment", "text"), 1, "no 64-bit integer")
    assert failed_with(shell("get", "--int", "text"), 1, "without --int")


def test_eight_bytes_are_a_number_if_asked(shell: Shell) -> None:
    """Counters of earlier stores have this form, and messages that hold numbers."""
    shell.lines("put", "--hex-value", "old", "0000000000000007")
    assert shell.lines("get", "--int", "old") == ["7"]
    assert shell.records("get", "--int", "old") == [{"key": "old", "value": 7}]
    shell.lines("put", "text", "text")
    assert shell.lines("scan", "--int") == ["old\t7", "text\ttext"]
    shell.lines("send", "--int", "inbox", "42")
    assert shell.lines("peek", "--int", "inbox") == ["42"]
    assert shell.lines("reap", "--hex-value", "inbox") == ["000000000000002a"]


def test_accounting(shell: Shell) -> None:
    with postroom.open(shell.path) as db:
        with db.begin() as tx:
            tx.enqueue_update(postroom.Accounting(b"sales/eu", {"orders": 2, "a\tb": 1}))
        db.drain()
    assert shell.lines("accounting", "sales") == ["a\\tb\t1", "orders\t2"]
    told = shell.records("accounting", "sales/eu")
    assert told == [{"prefix": "sales/eu", "metrics": {"orders": 2, "a\tb": 1}}]
    assert shell.lines("accounting", "nothing") == []


def test_scheduled_and_cancel(shell: Shell) -> None:
    shell.lines("send", "box/1", "late", "--delay", "200", "--header", "a=b")
    shell.lines("send", "box/2", "soon", "--delay", "100")
    with postroom.open(shell.path) as db, db.begin() as tx:
        tx.put(b"source", b"")
        tx.enqueue_update(postroom.Put(b"k", b"\xff"), execute_at=300)
        tx.enqueue_update(postroom.Increment(b"n", 2), execute_at=301)
        tx.enqueue_update(postroom.Delete(b"k"), execute_at=302)
        tx.enqueue_update(postroom.DeleteRange(b"k", None), execute_at=303)
        tx.enqueue_update(postroom.Accounting(b"k", {"m": 1}), execute_at=304)
    soon, late, *updates = shell.records("scheduled")
    assert (soon["message"], late["message"], late["headers"]) == ("soon", "late", {"a": "b"})
    assert soon["due"] < late["due"]
    assert [each["request"] for each in updates] == [
        {"put": "k", "value": {"hex": "ff"}},
        {"increment": "n", "by": 2},
        {"delete": "k"},
        {"delete_range": "k", "end": None},
        {"accounting": "k", "deltas": {"m": 1}},
    ]
    assert {each["source_key"] for each in updates} == {"source"}
    assert [line.split("\t")[2:] for line in shell.lines("scheduled", "--prefix", "box")] == [
        ["box/2", "soon"], ["box/1", "late"],
    ]  # fmt: skip
    assert shell.records("cancel", soon["id"], updates[0]["id"]) == [{"cancelled": 2, "gone": 0}]
    assert len(shell.lines("scheduled")) == 5
    again = shell("cancel", soon["id"], late["id"])
    assert failed_with(again, 1, "1 cancelled", "1 not found")
    assert shell("cancel", "nonsense").exit_code == 2
    (status,) = shell.records("status")
    assert (status["counters"]["cancelled"], status["counters"]["dead_letters"]) == (3, 0)


def test_dead_letters_tell_what_died(shell: Shell) -> None:
    with postroom.open(shell.path) as db:
        db.put(b"text\xff", b"text")
        with db.begin() as tx:
            tx.enqueue_update(postroom.Increment(b"text\xff", 3))
        db.drain()
    (letter,) = shell.records("dead-letters")
    assert letter["request"] == {"increment": {"hex": "74657874ff"}, "by": 3}
    assert (letter["message"], letter["source_key"]) == (None, {"hex": "74657874ff"})


def test_watch_tells_what_was_changed(shell: Shell) -> None:
    with postroom.open(shell.path) as db:
        before = db.now()
        db.put(b"a", b"1\n")
        db.increment(b"b", 3)
        db.delete(b"a")
    told = shell.lines("watch", "a", "z", "--after", str(int(before)), "--limit", "3")
    assert [line.split("\t")[1:] for line in told] == [
        ["put", "a", "1\\n"], ["put", "b", "3"], ["delete", "a"],
    ]  # fmt: skip
    last = told[1].split("\t")[0]
    (record,) = shell.records("watch", "--prefix", "", "--after", last, "--limit", "1")
    assert (record["change"], record["key"], record["value"]) == ("delete", "a", None)
    assert record["timestamp"] > int(last)
    assert len(shell.lines("watch", "a", "--after", str(int(before)), "--limit", "2")) == 2
    assert shell("watch").exit_code == 2


def test_watch_prints_at_once_and_ends_with_control_c(tmp_path: Path) -> None:
    server = LoopbackServer(tmp_path / "store", create=True)
    try:
        with postroom.connect(server.address, insecure=True) as db:
            before = db.now()
            db.put(b"a", b"1")
            reached = ("--connect", server.address, "--insecure")
            process = start("watch", "a", "--after", str(int(before)), *reached)
            assert process.stdout is not None
            assert process.stdout.readline().endswith("put\ta\t1\n")
            process.send_signal(signal.SIGINT)
            _, noise = process.communicate(timeout=END_SECONDS)
            assert (process.returncode, noise) == (130, "")
    finally:
        server.close()


def test_watch_of_a_folder_prints_what_was_changed_and_exits(shell: Shell) -> None:
    with postroom.open(shell.path) as db:
        before = db.now()
        db.put(b"a", b"1")
        db.put(b"a", b"2")
    told = shell.lines("watch", "a", "--after", str(int(before)))
    assert [line.split("\t")[1:] for line in told] == [["put", "a", "1"], ["put", "a", "2"]]
    assert shell.lines("watch", "a") == []


def test_version_and_module(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"postroom {postroom.__version__}\n"
    command = [sys.executable, "-m", "postroom", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"postroom {postroom.__version__}\n"


def test_shells_complete_commands() -> None:
    environment = {**os.environ, "_POSTROOM_COMPLETE": "complete_bash", "COMP_WORDS": "postroom sc",
                   "COMP_CWORD": "1"}  # fmt: skip
    command = [sys.executable, "-m", "postroom"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["scan", "scheduled"]


@pytest.mark.parametrize("held", [{"notes.txt": "mine"}, {"LOG": "mine"}])
@pytest.mark.parametrize(
    "command",
    [["get", "k"], ["delete", "k"], ["scan"], ["peek", "k"], ["reap", "k"], ["inboxes"],
     ["dead-letters"], ["status"], ["put", "k", "v"], ["send", "k", "v"], ["increment", "k"]],
    ids=lambda each: each[0],
)  # fmt: skip
def test_a_command_does_not_make_a_store_of_a_foreign_folder(
    shell: Shell, command: list[str], held: dict[str, str]
) -> None:
    shell.path.mkdir()
    for name, content in held.items():
        (shell.path / name).write_text(content)
    assert failed_with(shell(*command), 1, str(shell.path), "nothing was changed")
    assert {path.name: path.read_text() for path in shell.path.iterdir()} == held


def test_a_file_is_no_folder(shell: Shell) -> None:
    shell.path.write_text("mine")
    assert failed_with(shell("get", "k"), 1, "is a file")
    assert shell.path.read_text() == "mine"


# --- the environment


def invoke(*arguments: str, **variables: str | None) -> Any:
    names = ("PATH", "CONNECT", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "TOKEN", "INSECURE",
             "TIMEOUT")  # fmt: skip
    environment = {f"POSTROOM_{name}": variables.get(name) for name in names}
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_help_names_a_variable_for_each_option_about_connecting() -> None:
    told = CliRunner().invoke(app, ["get", "--help"], env={"COLUMNS": "200"}).output
    for name in ("PATH", "CONNECT", "TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "TOKEN", "INSECURE",
                 "TIMEOUT"):  # fmt: skip
        assert f"[env var: POSTROOM_{name}]" in told


NOBODY = "127.0.0.1:1"


def test_variables_stand_for_options(shell: Shell) -> None:
    shell.lines("put", "k", "v")
    assert invoke("get", "k", PATH=str(shell.path)).output == "v\n"
    refused = invoke("get", "k", CONNECT=NOBODY, INSECURE="1", TIMEOUT="0.2")
    assert failed_with(refused, 1, NOBODY, "0.2 s")


def test_an_option_counts_more_than_a_variable(shell: Shell) -> None:
    shell.lines("put", "k", "v")
    path = str(shell.path)
    assert invoke("get", "k", "--path", path, CONNECT=NOBODY, INSECURE="1").output == "v\n"
    there = ("--connect", NOBODY, "--insecure", "--timeout", "0.2")
    assert failed_with(invoke("get", "k", *there, PATH=path, TLS_CA="ca.pem"), 1, "0.2 s")
    told = invoke("get", "k", "--connect", NOBODY, "--tls-ca", "none.pem", INSECURE="1")
    assert failed_with(told, 1, "none.pem")
    told = invoke("get", "k", "--tls-ca", "none.pem", CONNECT=NOBODY, PATH=path)
    assert failed_with(told, 1, "none.pem")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PATH": "a", "CONNECT": NOBODY}, "both set"),
        ({"CONNECT": NOBODY}, "--tls-ca"),
        ({"CONNECT": NOBODY, "INSECURE": "maybe"}, "neither 1 nor 0"),
        ({"CONNECT": NOBODY, "INSECURE": "1", "TLS_CA": "ca.pem"}, "unset one"),
        ({"CONNECT": NOBODY, "INSECURE": "1", "TIMEOUT": "soon"}, "number of seconds"),
        ({"CONNECT": NOBODY, "INSECURE": "1", "TIMEOUT": "0"}, "number of seconds"),
        ({"CONNECT": "nonsense", "INSECURE": "1"}, "no address"),
        ({}, "--path DIR or --connect"),
    ],
)
def test_wrong_variables_are_wrong_usage(variables: dict[str, str], said: str) -> None:
    result = invoke("get", "k", **variables)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.replace("│", " ").split())


def test_an_empty_path_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("put", "k", "v", "--path", "").exit_code == 2
    assert list(tmp_path.iterdir()) == []
    assert invoke("put", "k", "v", "--path", ".").exit_code == 0
