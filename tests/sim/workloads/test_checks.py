"""The final checks of workloads: a good history passes, a changed one does not.

Each history is a real one, of a store without faults. Then somebody writes to the store what no
client did, or a client's memory is changed, as a fault of the store would have left it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random  # noqa: TID251 - made from the seed
from typing import Any

import pytest

import postroom
from postroom.limits import TRANSACTION_SECONDS_MAX
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.history import History
from tests.sim.recorded.operations import Anomaly, Record
from tests.sim.workloads.appends import Appends
from tests.sim.workloads.appointments import Appointments
from tests.sim.workloads.archives import Archives
from tests.sim.workloads.bank import Bank
from tests.sim.workloads.contenders import Contenders
from tests.sim.workloads.counters import Counters
from tests.sim.workloads.drawn import WORKLOADS
from tests.sim.workloads.jobs import Jobs
from tests.sim.workloads.keepers import Keepers
from tests.sim.workloads.large import Large
from tests.sim.workloads.ledger import Ledger
from tests.sim.workloads.lists import Lists
from tests.sim.workloads.mailboxes import Mailboxes
from tests.sim.workloads.reapers import Reapers
from tests.sim.workloads.registers import Registers
from tests.sim.workloads.ring import Ring
from tests.sim.workloads.seats import Seats
from tests.sim.workloads.spans import Spans
from tests.sim.workloads.tamperings import TAMPERINGS, Tampering, money_appears
from tests.sim.workloads.tamperings_of_time import an_appointment_is_missed
from tests.sim.workloads.trials import Trials
from tests.sim.workloads.waiters import Waiters
from tests.sim.workloads.watchers import Mirror, Watchers
from tests.sim.workloads.workload import Client, Workload

STEPS = 1500
MAKERS: dict[str, Callable[[EmbeddedStore], Workload]] = {
    "appends": lambda store: Appends(_record(store)),
    "appointments": lambda _: Appointments(),
    "archives": lambda _: Archives(),
    "bank": lambda _: Bank(),
    "contenders": lambda _: Contenders(),
    "counters": lambda _: Counters(),
    "jobs": lambda _: Jobs(),
    "keepers": lambda _: Keepers(),
    "large": lambda _: Large(),
    "ledger": lambda _: Ledger(),
    "lists": lambda _: Lists(),
    "mailboxes": lambda _: Mailboxes(),
    "reapers": lambda _: Reapers(),
    "registers": lambda store: Registers(_record(store)),
    "ring": lambda _: Ring(),
    "seats": lambda _: Seats(),
    "spans": lambda _: Spans(),
    "trials": lambda _: Trials(),
    "waiters": lambda _: Waiters(),
    "watchers": lambda _: Watchers(),
}


def _record(store: EmbeddedStore) -> Record:
    return Record(store.clock.monotonic)


class Played:
    """A workload that some clients have run, and that has come to an end."""

    def __init__(self, name: str) -> None:
        self.store = EmbeddedStore(3)
        self.store.witness = History()
        assert self.store.machine.open()
        self.db = self.store.database()
        self.workload = MAKERS[name](self.store)
        self.is_over = False
        self.store.run(self.workload.setup(self.db))
        tasks = []
        for number in range(self.workload.clients):
            database = self.store.database(f"{name} {number}")
            randomness = Random(f"{name} {number}")
            client = Client(database, randomness, number, 1, lambda: self.is_over)
            tasks.append((self.store.spawn(name, self.workload.start(client)), database))
        for _ in range(STEPS):
            self.store.agenda.step()
        self.is_over = True
        self.store.let_pass(1.0)
        for task, database in tasks:
            if not task.done:  # a watcher
                self.store.kill(task, database)
        self.store.agenda.stand_still(TRANSACTION_SECONDS_MAX)  # given-up messages are free again
        self.store.let_pass(1.0)

    def check(self) -> None:
        self.store.run(self.workload.check(self.db))


# --- judgements while it happens ------------------------------------------------------------------


def _change(timestamp: int, key: bytes) -> postroom.Change:
    return postroom.Change(key, b"", postroom.Timestamp(timestamp))


@pytest.mark.parametrize(
    "told",
    [
        [(5, b"a")],
        [(6, b"b"), (6, b"a")],
        [(7, b"a"), (6, b"a")],
        [(6, b"a"), (6, b"a")],
    ],
    ids=["of the past", "keys out of order", "times out of order", "twice"],
)
def test_a_stream_of_changes_out_of_order(told: list[tuple[int, bytes]]) -> None:
    mirror = Mirror(5, {})
    *before, last = [_change(*each) for each in told]
    for each in before:
        mirror.add(each)
    with pytest.raises(AssertionError):
        mirror.add(last)


def test_a_stream_of_changes_in_order() -> None:
    mirror = Mirror(5, {})
    for each in pairwise([b"a", b"b", b"c"]):
        for key in each:
            mirror.add(_change(int.from_bytes(each[0], "big") * 10 + (key != each[0]), key))
    mirror.finish()
    assert set(mirror.content) == {b"a", b"b", b"c"}


def test_an_audit_that_sees_half_of_a_transfer() -> None:
    played = Played("bank")
    client = Client(played.db, Random("audit"), 0, 9, lambda: False)

    async def audit() -> None:
        for _ in range(6):
            await Bank()._audit(client)

    played.store.run(audit())
    played.store.run(money_appears(played.db, Bank()))
    with pytest.raises(AssertionError, match="the accounts hold 501"):
        played.store.run(audit())


def test_a_ledger_whose_messages_overtake_each_other() -> None:
    played = Played("ledger")
    played.store.run(played.db.drain())
    client = Client(played.db, Random("clerk"), 0, 9, lambda: False)

    def send(tx: Any) -> None:
        for count in (10_001, 10_000):
            headers = {"from": 1, "count": count}
            tx.enqueue_message(b"ledger/account/0", b"1", headers=headers)

    async def credit() -> None:
        for _ in range(20):  # a few take only one
            await played.db.run(send)
            await played.db.run(Ledger()._credit, client, 0)

    with pytest.raises(AssertionError, match="message 10000 of 1 comes after"):
        played.store.run(credit())


def test_a_message_that_arrives_too_early() -> None:
    played = Played("reapers")
    client = Client(played.db, Random("reaper"), 5, 9, lambda: False)

    def send(tx: Any) -> None:
        for key in (b"inbox/0", b"inbox/1"):
            tx.enqueue_message(key, b"early", headers={"due": 1 << 62})

    async def reap() -> None:
        for _ in range(200):
            await played.db.run(Reapers()._reap, client)

    played.store.run(played.db.run(send))
    with pytest.raises(AssertionError, match="before it was due"):
        played.store.run(reap())


def test_every_workload_is_tampered_with() -> None:
    assert {name for name, _ in TAMPERINGS} == MAKERS.keys()
    assert {each.__name__.lower() for each in WORKLOADS} <= MAKERS.keys()
    assert ("appointments", an_appointment_is_missed) in TAMPERINGS


# --- good and bad histories -----------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_a_good_history_passes(name: str) -> None:
    Played(name).check()


@pytest.mark.parametrize(
    ("name", "tamper"), TAMPERINGS, ids=[f"{name}-{each.__name__}" for name, each in TAMPERINGS]
)
def test_a_bad_one_does_not(name: str, tamper: Tampering) -> None:
    played = Played(name)
    played.store.run(tamper(played.db, played.workload), seconds=1000.0)
    with pytest.raises(AssertionError) as caught:
        played.check()
    assert isinstance(caught.value, Anomaly) or caught.traceback[-1].path.match("*/workloads/*.py")
