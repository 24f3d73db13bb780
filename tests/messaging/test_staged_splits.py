"""Ranges with staged rows and bulk loads that split, told line by line.

Lines are ``command -> answer``. ``pytest --rewrite`` writes the answers. Nothing is split but by
``split``, and a publication goes on by ``apply`` alone, three rows at a time. ``deaf`` lets ranges
take nothing from each other, until ``hear``. ``show`` tells what lies in each range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from postroom import limits
from postroom.client.commits import alone
from postroom.client.staging import packed
from postroom.errors import Error, Unavailable
from postroom.kv import keys
from postroom.messaging.handover.receiving import HandedOver
from postroom.messaging.ingest.requests import (
    AbortStaged,
    ApplyStaged,
    EndLoad,
    LoadRows,
    PublishStaged,
    StageRows,
    Winner,
)
from postroom.messaging.requests import EnqueueMessage
from postroom.ranges.requests import Increment, Put
from postroom.ranges.split.requests import CancelSplit, DivideSome, PrepareSplit, Split
from postroom.ranges.split.service import SplitService
from tests.client.stores import Store
from tests.server.splitting import ask, new_id, upkeep

FOLDER: Final = Path(__file__).parent / "staged_splits"
ARROW: Final = " -> "
JOB, ATTEMPT, RUN = b"j" * 24, b"a" * 16, b"r" * 16
NAMES: Final = {
    keys.STAGED_QUERY: "query", keys.STAGED_WINNERS: "winners", keys.STAGED_JOB: "job",
    keys.STAGED_TASK_ATTEMPT: "attempt", keys.STAGED_CHUNK: "chunk",
}  # fmt: skip


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranges split by hand, and steps of publications be small."""

    async def rest(service: SplitService) -> None:
        while True:
            await service.wake_up.wait()

    monkeypatch.setattr(SplitService, "run", rest)
    monkeypatch.setattr(limits, "STAGED_STEP_ROWS_MAX", 3)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_staged_rows_go_with_their_queries(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    stage = Stage(monkeypatch)
    played = "".join(f"{stage.play(line)}\n" for line in expected.splitlines())
    stage.store.node.close()
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == expected or request.config.getoption("--rewrite")


def row_of(told: str) -> Any:
    """Return the row that ``a=1`` (a value), ``a+1`` or ``a!text`` (a message) tells."""
    for sign, kind in (("=", Put), ("!", EnqueueMessage)):
        key, found, value = told.partition(sign)
        if found:
            return kind(key.encode(), value.encode())
    key, _, number = told.partition("+")
    return Increment(key.encode(), int(number))


class Stage:
    """A store with staged rows."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.cut = b""
        self.chunks: Counter[bytes] = Counter()
        self.is_deaf = False
        take = HandedOver.hand_over

        def hand_over(of: HandedOver, ctx: Any, request: Any) -> Any:
            if self.is_deaf:
                raise Unavailable("nothing is taken")
            return take(of, ctx, request)

        patch.setattr(HandedOver, "hand_over", hand_over)
        self.store = Store()

    def play(self, line: str) -> str:
        """Return the line, with its answer."""
        told = line.partition(ARROW)[0].rstrip()
        if not told or told.startswith("#"):
            return line
        name, *arguments = told.split()
        try:
            said = self.COMMANDS[name](self, *arguments)
        except Error as error:
            said = f"{type(error).__name__}: {str(error).partition(';')[0]}"
        return f"{told}{ARROW}{'ok' if said is None else said}"

    def commit(self, write: Any) -> Any:
        """Commit a write once, as a client would."""
        answers = ask(self.store, alone(self.store.core._sender, write.anchor(), write)).answers
        return answers[0] if answers else None

    # --- staged batches

    def stage(self, query: str, *rows: str) -> None:
        name = query.encode()
        chunk = packed([row_of(each) for each in rows])
        self.commit(StageRows(name, 0, JOB, b"", ATTEMPT, self.chunks[name], chunk))
        self.chunks[name] += 1

    def publish(self, query: str) -> str:
        name = query.encode()
        winners = [Winner(ATTEMPT, self.chunks[name])]
        _, more = self.commit(PublishStaged(name, 0, JOB, winners))
        return "more" if more else "all"

    def apply(self, query: str) -> str:
        return "more" if self.commit(ApplyStaged(query.encode())) else "all"

    def finish(self, query: str) -> None:
        self.store.db.staging.finish(query.encode())

    def abort(self, query: str) -> str:
        return str(self.commit(AbortStaged(query.encode(), 0, JOB)))

    # --- loads

    def begin(self, name: str, start: str, end: str) -> str:
        calls: Any = self.store.db.staging
        return str(calls.begin_load(name.encode(), RUN, start.encode(), end.encode()))

    def load(self, name: str, *some: str) -> str:
        found = [each.encode() for each in some]
        return f"{self.commit(LoadRows(name.encode(), RUN, found, [b'1'] * len(found)))} rows"

    def end(self, name: str, at: str) -> str:
        return str(self.commit(EndLoad(name.encode(), RUN, True, True, at.encode())))

    # --- splits

    def prepare(self, key: str) -> None:
        self.cut = key.encode()
        ask(self.store, PrepareSplit(self.cut, new_id(self.store)))

    def split(self) -> None:
        (hosted,) = (
            each for each in self.store.node.replicas.hosted.values()
            if each.replica.bounds.contains(self.cut)
        )  # fmt: skip
        while upkeep(self.store, hosted, DivideSome()):
            pass
        upkeep(self.store, hosted, Split())
        self.store.advance(0.5)

    def give_up(self) -> str:
        return str(ask(self.store, CancelSplit(self.cut)))

    def lead(self) -> None:
        """Begin anew, as another leader does."""
        self.store.kill()

    def deaf(self) -> None:
        self.is_deaf = True

    def hear(self) -> None:
        self.is_deaf = False
        self.store.advance(10.0)

    # --- looks

    def show(self) -> str:
        """Tell what is staged in each range, and its loads."""
        engine, said = self.store.node.engine, []
        for range_id, hosted in sorted(self.store.node.replicas.hosted.items()):
            found: Counter[str] = Counter()
            for span in hosted.replica.bounds.staged:
                for raw, _ in engine.iterate(*span):
                    query = keys.unescape(raw[2 : raw.index(keys.END_OF_KEY, 2)]).decode()
                    found[f"{NAMES[raw[1:2]]} {query}"] += 1
            prefix = keys.staging_prefix(range_id, keys.STAGED_LOAD)
            for raw, _ in engine.iterate(prefix, keys.after_prefix(prefix)):
                found[f"load {raw[len(prefix) :].decode()}"] += 1
            told = ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
            said.append(f"{range_id}: {told or 'nothing'}")
        return " | ".join(said)

    def get(self, *some: str) -> str:
        found = (self.store.db.get(each.encode()) for each in some)
        return " ".join("none" if value is None else value.decode() for value in found)

    def peek(self, key: str) -> str:
        return " ".join(each.value.decode() for each in self.store.db.peek(key.encode()))

    COMMANDS: Final[dict[str, Callable[..., str | None]]] = {
        "stage": stage, "publish": publish, "apply": apply, "finish": finish, "abort": abort,
        "begin": begin, "load": load, "end": end, "prepare": prepare, "split": split,
        "give_up": give_up, "lead": lead, "deaf": deaf, "hear": hear, "show": show, "get": get,
        "peek": peek,
    }  # fmt: skip
