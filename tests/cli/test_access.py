"""The commands about rights of clients, and the audit log."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

import postroom
from tests.cli.commands import failed_with, invoke, lines, records


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, str]:
    postroom.open(tmp_path / "store").close()
    return "--path", str(tmp_path / "store")


def test_rights_are_granted_listed_and_revoked(store: tuple[str, str]) -> None:
    assert lines("access", "list", *store) == []
    assert lines("access", "grant", "shop", "read,write", "shop/", *store) == ["read,write"]
    assert lines("access", "grant", "shop", "send", "shop/", *store) == ["read,write,send"]
    assert lines("access", "grant", "reports", "read", *store) == ["read"]
    assert lines("access", "grant", "shop", "work", "--queue", "emails", *store) == ["work"]
    assert lines("access", "list", *store) == [
        "reports\tread\t\t", "shop\twork\t\temails", "shop\tread,write,send\tshop/\t",
    ]  # fmt: skip
    assert records("access", "list", *store) == [
        {"name": "reports", "verbs": ["read"], "prefix": ""},
        {"name": "shop", "verbs": ["work"], "queue": "emails"},
        {"name": "shop", "verbs": ["read", "write", "send"], "prefix": "shop/"},
    ]
    assert lines("access", "list", "shop/", *store) == ["shop\tread,write,send\tshop/\t"]
    assert lines("access", "revoke", "shop", "send", "shop/", *store) == ["1"]
    assert records("access", "revoke", "shop", *store) == [{"changed": 2}]
    assert lines("access", "revoke", "reports", "read", "", *store) == ["1"]
    assert lines("access", "list", *store) == []


def test_the_audit_log_is_printed_with_the_newest_at_the_end(store: tuple[str, str]) -> None:
    assert lines("audit-log", *store) == []
    (granted,) = records("access", "grant", "shop", "read", "shop/", *store)
    assert granted == {"name": "shop", "verbs": ["read"], "prefix": "shop/"}
    lines("access", "revoke", "shop", *store)
    first, last = records("audit-log", *store)
    assert first["what"] == "read on keys with b'shop/' to 'shop'"
    assert (last["action"], last["by"], last["times"]) == ("revoked", "", 1)
    assert datetime.fromisoformat(first["at"]) <= datetime.fromisoformat(last["at"])
    (line,) = lines("audit-log", "--limit", "1", *store)
    assert line.split("\t")[1:] == ["", "revoked", "1", last["what"]]


def test_a_name_with_control_characters_is_printed_escaped(store: tuple[str, str]) -> None:
    lines("access", "grant", "a\nb\x1b[31m", "read", "\t", *store)
    assert lines("access", "list", *store) == ["a\\nb\\x1b[31m\tread\t\\t\t"]
    (line,) = lines("audit-log", *store)
    assert line.isprintable() or "\t" in line
    assert "\x1b" not in line


def test_keys_in_hexadecimal_digits(store: tuple[str, str]) -> None:
    lines("access", "grant", "shop", "read", "00ff", "--hex", *store)
    assert records("access", "list", *store)[0]["prefix"] == {"hex": "00ff"}
    assert records("access", "list", "--hex", *store)[0]["prefix"] == "00ff"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("grant", "shop", "fly"), ["there is no verb 'fly'", "read, write, send"]),
        (("grant", "", "read"), ["1 to 256 characters"]),
        (("grant", "shop", "read", "shop/", "--queue", "emails"), ["not of both"]),
        (("grant", "shop", "read,work", "shop/"), ["work on keys would allow nothing", "a queue"]),
        (
            ("grant", "shop", "send,reap", "--queue", "emails"),
            ["send and reap on a queue would allow nothing", "grant it on keys"],
        ),
        (("revoke", "shop"), ["'shop' has no such grant", "postroom access list"]),
    ],
)
def test_a_change_that_cannot_be_is_told(
    store: tuple[str, str], arguments: tuple[str, ...], words: list[str]
) -> None:
    assert failed_with(invoke("access", *arguments, *store), 1, "nothing was changed", *words)
