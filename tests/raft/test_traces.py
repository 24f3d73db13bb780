"""Raft told message by message: what one member says when it is told this and that.

Member 1 is real, the others are peers. A trace is a text of lines ``what -> what it says``::

    wait 1.1            time passes
    2: Voted 1 granted  member 2 says so; several with ``;`` between them come in one turn
    propose a           a client wants ``a``
    state               role, term, vote, log (term of each entry), what is committed and applied

Messages are told by their names and fields in order; entries as ``term/command``. ``--rewrite`` as
for the scripts of the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroom.raft import messages
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers, command

FOLDER = Path(__file__).parent / "traces"
ARROW = " -> "
NAMED = {"success", "granted", "quiet", "installing", "transfer"}


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_a_trace(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    trace = Trace()
    played = "".join(f"{trace.play(line)}\n" for line in expected.splitlines())
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == expected or request.config.getoption("--rewrite")


class Trace:
    """The real member, and what was said."""

    def __init__(self) -> None:
        self._peers = ScriptedPeers()

    def play(self, line: str) -> str:
        """Return the line, with its answer."""
        told = line.partition(ARROW)[0].rstrip()
        if not told or told.startswith("#"):
            return line
        return told + ARROW + self._answer(told)

    def _answer(self, told: str) -> str:
        peers = self._peers
        name, _, rest = told.partition(" ")
        if name == "wait":
            return described(peers.wait(float(rest)))
        if name == "propose":
            peers.propose(rest.encode())
            return described(peers.turn())
        if name == "state":
            return self._state()
        said = [each.strip().partition(": ") for each in told.split(";")]
        return described(peers.turn(*((int(who), parsed(what)) for who, _, what in said)))

    def _state(self) -> str:
        peers = self._peers
        group, core = peers.group, peers.core
        role = "leads" if group.is_leader else "follows"
        terms = " ".join(str(term) for _, term in peers.log()) or "empty"
        applied = b" ".join(peers.machine.history().values()).decode() or "nothing"
        return (
            f"{role} in term {group.term}, voted for {core.vote or 'nobody'}, log {terms}, "
            f"committed {core.commit_index}, applied {applied}"
        )


def parsed(told: str) -> Any:
    """Return a message by its name and the fields that matter; flags by name."""
    name, *words = told.split()
    kind = getattr(messages, name)
    fields: dict[str, Any] = {}
    names = [each for each in kind.__struct_fields__ if each not in NAMED | {"entries"}]
    for field in kind.__struct_fields__:
        if field in NAMED:
            fields[field] = field in words
    numbers = [word for word in words if word.isdigit()]
    fields |= dict(zip(names, map(int, numbers), strict=True))
    if "entries" in kind.__struct_fields__:
        fields["entries"] = tuple(entry(word) for word in words if "/" in word)
    return kind(**fields)


def entry(word: str) -> tuple[int, bytes]:
    """Parse ``term/command``."""
    term, _, text = word.partition("/")
    return int(term), NOOP_PAYLOAD if text == "noop" else command(text.encode())


def described(said: list[tuple[int, Any]]) -> str:
    """Return what the member says, to whom."""
    return "; ".join(f"{to}: {_message(message)}" for to, message in said) or "nothing"


def _message(message: Any) -> str:
    words = [type(message).__name__]
    for field, value in msgspec.structs.asdict(message).items():
        if field in NAMED:
            words += [field] if value else []
        elif field == "entries":
            words += [f"{term}/{_payload(payload)}" for term, payload in value]
        else:
            words.append(str(value))
    return " ".join(words)


def _payload(payload: bytes) -> str:
    return "noop" if payload == NOOP_PAYLOAD else payload[1:].decode()
