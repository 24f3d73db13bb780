"""Golden scripts: behaviour told line by line, with what each line answers.

A script is a text of lines ``who: command -> answer``; empty lines and those with ``#`` explain.
``who`` is ``db``, or a transaction, which begins where it is first named. The runner carries the
commands out on a store whose clock it moves by hand, writes the answers down, and compares::

    t1: get a -> 1
    t2: get_for_update a -> waits        goes on with "t2: answer", once it was answered;
                                         or with "t2: cancel": it gives up waiting
    t1: commit -> TransactionConflict    an error, by its name

``pytest --rewrite`` writes the answers into the scripts instead: read the difference before you
commit it. The tables ``Stage.DATABASE`` and ``Stage.TRANSACTION`` say what each command does.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from postroom.client.transaction import Transaction
from postroom.client.values import Message
from postroom.errors import Error
from postroom.kv.log_device import WriteFault
from postroom.ranges.requests import Increment, Put
from tests.client.hand_driver import Running
from tests.client.stores import Store

FOLDER: Final = Path(__file__).parent / "scripts"
ARROW: Final = " -> "

Action = Callable[..., Coroutine[Any, Any, str]]


def scripts() -> list[str]:
    """Return the names of all scripts."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def check(name: str, store: Store, *, rewrite: bool) -> None:
    """Play a script and compare, or rewrite it."""
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    stage = Stage(store)
    played = "".join(f"{stage.play(line)}\n" for line in expected.splitlines())
    if rewrite:
        path.write_text(played)
    assert played == expected or rewrite


class Stage:
    """A store and the transactions that a script has begun on it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._transactions: dict[str, Transaction] = {}
        self._waiting: dict[str, Running[str]] = {}
        self._marks: dict[str, int] = {}

    def play(self, line: str) -> str:
        """Return the line, with its answer."""
        told = line.partition(ARROW)[0].rstrip()
        if not told or told.startswith("#"):
            return line
        who, _, command = told.partition(": ")
        name, *arguments = command.split()
        if name in {"answer", "cancel"}:
            running = self._waiting.pop(who)
            if name == "cancel":
                self._store.driver.cancel(running)
        elif who == "db":
            running = self._store.start(self.DATABASE[name](self, *arguments))
        else:
            running = self._store.start(self._in_transaction(who, name, arguments))
        return told + ARROW + self._answer(who, running)

    def _answer(self, who: str, running: Running[str]) -> str:
        if not running.done:
            self._waiting[who] = running
            return "waits"
        try:
            return running.result()
        except (Error, CancelledError) as error:
            return type(error).__name__

    async def _in_transaction(self, who: str, name: str, arguments: list[str]) -> str:
        if name == "begin":
            self._transactions[who] = self._store.core.begin(timeout=float(arguments[0]))
            return "ok"
        if who not in self._transactions:
            self._transactions[who] = self._store.core.begin()
        return await self.TRANSACTION[name](self, self._transactions[who], *arguments)

    # --- commands of the database

    async def _get(self, key: str) -> str:
        return shown(await self._store.core.get(key.encode()))

    async def _scan(self, start: str, end: str) -> str:
        return await listed(self._store.core.scan(start.encode(), end.encode()))

    async def _put(self, key: str, value: str) -> str:
        await self._store.core.put(key.encode(), packed(value))
        return "ok"

    async def _delete_range(self, start: str, end: str) -> str:
        return str(await self._store.core.delete_range(start.encode(), end.encode()))

    async def _peek(self, key: str, at: str = "", mark: str = "") -> str:
        assert at in ("", "at")
        moment = self._marks[mark] if mark else None
        return told(await self._store.core.peek(key.encode(), at=moment))

    async def _mark(self, mark: str) -> str:
        self._marks[mark] = await self._store.core.now()
        return "ok"

    async def _dead(self) -> str:
        letters = await self._store.core.dead_letters()
        told = [
            f"{letter.reason.partition(':')[0]} of {described(letter.request)}"
            for letter in letters
        ]
        return ", ".join(told) or "nothing"

    async def _replay(self) -> str:
        letters = await self._store.core.dead_letters()
        return str(await self._store.core.replay([letter.id for letter in letters]))

    async def _counters(self) -> str:
        counters = self._store.counters()
        names = ("enqueued", "delivered", "executed", "pending", "dead", "reaped")
        return ", ".join(f"{getattr(counters, each)} {each}" for each in names)

    async def _advance(self, seconds: str) -> str:
        self._store.advance(float(seconds))
        return "ok"

    async def _kill(self) -> str:
        self._store.kill()
        return "ok"

    async def _fail_next_write(self, outcome: str) -> str:
        faults = {"unwritten": WriteFault.NOT_AT_ALL, "written": WriteFault.THERE_WHOLE}
        self._store.engine.fault = faults[outcome]
        return "ok"

    DATABASE: Final[dict[str, Action]] = {
        "get": _get,
        "scan": _scan,
        "put": _put,
        "delete_range": _delete_range,  # start end
        "peek": _peek,  # key [at MARK]
        "mark": _mark,  # name: remember the moment
        "dead": _dead,  # the dead letters
        "replay": _replay,  # all of them
        "counters": _counters,
        "advance": _advance,  # seconds: let time pass
        "kill": _kill,  # end the process, start another one; clients and their transactions live on
        "fail_next_write": _fail_next_write,  # "written" or "unwritten": what the device then holds
    }

    # --- commands of a transaction

    async def _tx_get(self, tx: Transaction, key: str) -> str:
        return shown(await tx.get(key.encode()))

    async def _tx_get_for_update(self, tx: Transaction, key: str) -> str:
        return shown(await tx.get_for_update(key.encode()))

    async def _tx_scan(self, tx: Transaction, start: str, end: str) -> str:
        return await listed(tx.scan(start.encode(), end.encode()))

    async def _tx_put(self, tx: Transaction, key: str, value: str) -> str:
        tx.put(key.encode(), packed(value))
        return "ok"

    async def _tx_delete(self, tx: Transaction, key: str) -> str:
        tx.delete(key.encode())
        return "ok"

    async def _tx_increment(self, tx: Transaction, key: str, by: str) -> str:
        return str(await tx.increment(key.encode(), int(by)))

    async def _tx_send(
        self, tx: Transaction, key: str, value: str, in_: str = "", after: str = ""
    ) -> str:
        assert in_ in ("", "in")
        due = float(after) if after else None
        tx.enqueue_message(key.encode(), value.encode(), deliver_at=due)
        return "ok"

    async def _tx_send_many(self, tx: Transaction, key: str, value: str, number: str) -> str:
        for each in range(int(number)):
            tx.enqueue_message(key.encode(), f"{value}{each}".encode())
        return "ok"

    async def _tx_defer_increment(self, tx: Transaction, key: str, by: str, *due: str) -> str:
        at = float(due[1]) if due else None
        tx.enqueue_update(Increment(key.encode(), int(by)), execute_at=at)
        return "ok"

    async def _tx_defer_put(self, tx: Transaction, key: str, value: str) -> str:
        tx.enqueue_update(Put(key.encode(), packed(value)))
        return "ok"

    async def _tx_reap(
        self, tx: Transaction, key: str, most: str = "100", wait: str = "", seconds: str = ""
    ) -> str:
        assert wait in ("", "wait")
        patience = float(seconds) if seconds else None
        return told(await tx.reap_queue(key.encode(), int(most), wait=patience))

    async def _tx_commit(self, tx: Transaction) -> str:
        await tx.commit()
        return "committed"

    async def _tx_rollback(self, tx: Transaction) -> str:
        await tx.rollback()
        return "ok"

    TRANSACTION: Final[dict[str, Action]] = {
        "get": _tx_get,
        "get_for_update": _tx_get_for_update,
        "scan": _tx_scan,
        "put": _tx_put,
        "delete": _tx_delete,
        "increment": _tx_increment,
        "send": _tx_send,  # key value [in SECONDS]
        "send_many": _tx_send_many,  # key value NUMBER
        "defer_increment": _tx_defer_increment,  # key by [in SECONDS]
        "defer_put": _tx_defer_put,
        "reap": _tx_reap,  # key [NUMBER [wait SECONDS]]
        "commit": _tx_commit,  # again after CommitUnknown: tells what came of it
        "rollback": _tx_rollback,
    }


def packed(value: str) -> bytes:
    """Pack whole numbers as ``increment`` stores them, anything else as text."""
    is_number = value.lstrip("-").isdigit()
    return int(value).to_bytes(8, "big", signed=True) if is_number else value.encode()


def shown(value: bytes | None) -> str:
    """Return a value as the text of a script."""
    if value is None:
        return "nothing"
    return str(int.from_bytes(value, "big", signed=True)) if len(value) == 8 else value.decode()


def described(request: Any) -> str:
    """Return a deferred update as text."""
    match request:
        case Increment(key=key, by=by):
            return f"{key.decode()} + {by}"
    return f"{type(request).__name__.lower()} {request.key.decode()}"


async def listed(pairs: AsyncIterator[tuple[bytes, bytes]]) -> str:
    """Return the pairs of a scan as text."""
    return " ".join([f"{key.decode()}={shown(value)}" async for key, value in pairs]) or "nothing"


def told(messages: Iterable[Message]) -> str:
    """Return the messages of an inbox as text; of many only the ends."""
    values = [message.value.decode() for message in messages]
    if len(values) > 6:
        values[3:-3] = [f"... {len(values) - 6} more ..."]
    return " ".join(values) or "nothing"
