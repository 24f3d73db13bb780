"""Transactions that take turns on one store, written down as they go.

A :class:`Session` runs steps of several transactions, in any order, on a database in its
synchronous form, and notes what each was told. In the end the oracle has all that were committed,
what was there before, and what is there now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import postroom
from postroom.errors import TransactionConflict
from tests.serializable.oracle import Done, State, explains


class Session:
    """A session of transactions on one store, whose steps and answers are kept.

    Args:
        db: where the transactions run.
        prefix: before all keys, so that sessions on one store do not meet.
        before: what is there first.
    """

    def __init__(self, db: postroom.Database, prefix: str, before: State) -> None:
        self.db = db
        self.before = before
        self.failed: set[str] = set()
        self._prefix = prefix
        self._open: dict[str, postroom.Transaction] = {}
        self._done: dict[str, list[Done]] = {}
        self._committed: list[str] = []
        with db.begin() as tx:
            for name, value in before.keys.items():
                tx.put(self._key(name), value.encode())
            for name, values in before.inboxes.items():
                for value in values:
                    tx.enqueue_message(self._key(name), value.encode())
        db.drain()

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}/{name}".encode()

    def transaction(self, who: str) -> postroom.Transaction:
        """Return the transaction of that name, and begin it at its first use."""
        if who not in self._done:
            self._open[who], self._done[who] = self.db.begin(), []
        return self._open[who]

    # --- steps

    def step(self, who: str, what: str, target: str = "", value: str = "") -> object:
        """Carry out a step of a transaction, unless that has failed, and return the answer."""
        if who in self.failed:
            return None
        try:
            return getattr(self, f"_{what}")(who, target, value)
        except TransactionConflict:
            self.failed.add(who)
            tx = self._open.pop(who)
            if not tx.closed:
                tx.rollback()
            return None

    def _note(self, who: str, what: str, target: str, told: object) -> object:
        self._done[who].append(Done(what, target, told))
        return told

    def _put(self, who: str, target: str, value: str) -> object:
        self.transaction(who).put(self._key(target), value.encode())
        return self._note(who, "put", target, value)

    def _delete(self, who: str, target: str, _: str) -> object:
        self.transaction(who).delete(self._key(target))
        return self._note(who, "delete", target, None)

    def _get(self, who: str, target: str, _: str) -> object:
        found = self.transaction(who).get(self._key(target))
        return self._note(who, "get", target, found and found.decode())

    def _lock(self, who: str, target: str, _: str) -> object:
        found = self.transaction(who).get_for_update(self._key(target))
        return self._note(who, "get", target, found and found.decode())

    def _scan(self, who: str, _: str, __: str) -> object:
        found = self._all(self.transaction(who))
        return self._note(who, "scan", "", found)

    def _all(self, reader: postroom.Database | postroom.Transaction) -> dict[str, str]:
        """Return the values of all names."""
        start, end = postroom.prefix(self._key(""))
        return {
            key.decode().removeprefix(f"{self._prefix}/"): value.decode()
            for key, value in reader.scan(start, end)
        }

    def _send(self, who: str, target: str, value: str) -> object:
        self.transaction(who).enqueue_message(self._key(target), value.encode())
        return self._note(who, "send", target, value)

    def _reap(self, who: str, target: str, most: str) -> object:
        reaped = self.transaction(who).reap_queue(self._key(target), int(most or 100))
        told = [each.value.decode() for each in reaped]
        if told or not self._others_hold(who, target):
            return self._note(who, "reap", target, told)
        return self._note(who, "reap", target, None)

    def _others_hold(self, who: str, target: str) -> bool:
        return any(
            done.what == "reap" and done.target == target and done.told
            for other in self._open
            if other != who
            for done in self._done[other]
        )

    def _peek(self, who: str, target: str, _: str) -> object:
        return self._note(who, "peek", target, self._peeked(who, target, 100))

    def _peek_first(self, who: str, target: str, _: str) -> object:
        return self._note(who, "peek_first", target, self._peeked(who, target, 1))

    def _peeked(self, who: str, target: str, most: int) -> list[str]:
        found = self.transaction(who).peek(self._key(target), most)
        return [each.value.decode() for each in found]

    def _commit(self, who: str, _: str, __: str) -> object:
        self.transaction(who).commit()
        self.committed(who)
        return True

    def committed(self, who: str) -> None:
        """Note that a transaction has committed."""
        del self._open[who]
        self._committed.append(who)

    def forget(self, who: str) -> None:
        """Forget a refused transaction."""
        del self._open[who]

    def _rollback(self, who: str, _: str, __: str) -> object:
        self.transaction(who).rollback()
        del self._open[who]
        return True

    # --- judging

    def after(self, names: Iterable[str]) -> State:
        """Return the state of these names now."""
        self.db.drain()
        found = self._all(self.db)
        peeked = {name: self.db.peek(self._key(name)) for name in names}
        return State(
            found, {name: [each.value.decode() for each in held] for name, held in peeked.items()}
        )

    def judge(self) -> None:
        """Check that all committed transactions fit into one order."""
        for who in list(self._open):
            self.step(who, "rollback")
        done = [self._done[who] for who in self._committed]
        targets = {each.target for steps in done for each in steps} | self.before.inboxes.keys()
        after = self.after(sorted(targets - {""}))
        told = dict(zip(self._committed, done, strict=True))
        assert explains(self.before, done, after) is not None, f"{self.before} {told} {after}"


class SpreadSession(Session):
    """A session whose names lie in ranges of their own; see :meth:`spread`.

    A message for another range comes a moment after the commit. The session waits for that.
    """

    NAMES: Final = ("v", "x", "y", "z")

    @classmethod
    def spread(cls, db: postroom.Database) -> None:
        """Split a store between the names."""
        for name in cls.NAMES[1:]:
            db.split(f"{name}/".encode())

    def _key(self, name: str) -> bytes:
        return f"{name}/{self._prefix}".encode()

    def _all(self, reader: postroom.Database | postroom.Transaction) -> dict[str, str]:
        return {
            name: value.decode()
            for name in self.NAMES
            for _, value in reader.scan(self._key(name), self._key(name) + b"\x00")
        }

    def committed(self, who: str) -> None:
        super().committed(who)
        self.db.drain()
