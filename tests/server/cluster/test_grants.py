"""Clients with granted rights: what a node refuses them, when, and what they learn of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import AccessDenied, Invalid
from postroom.limits import (
    ACTIONS_TOLD_MAX,
    AUDITED_ACTIONS_MAX,
    AUDITED_CHANGES_MAX,
    AUDITED_CHARACTERS_MAX,
    AUDITED_REFUSALS_MAX,
    CLIENT_NAME_CHARACTERS_MAX,
    GRANTS_BYTES_MAX,
    GRANTS_MAX,
    REFUSALS_TOLD_MAX,
    REFUSALS_TOLD_PER_CLIENT_MAX,
)
from postroom.messaging.requests import EnqueueMessage, ReapQueue
from postroom.protocol.requests import REQUESTS, name_of
from postroom.protocol.streams import OnBehalf
from postroom.ranges import access, audit
from postroom.ranges.access import (
    ACCESS_KEY,
    Grant,
    GrantRights,
    Grants,
    RevokeRights,
    granted_by,
)
from postroom.ranges.audit import NoteActions, NotedAction
from postroom.ranges.contract import Request, Role
from postroom.ranges.requests import Delete, Get, GetMany, Put, Scan, ScanChanges
from postroom.ranges.rights import EVERY_QUEUE, EVERY_VERB, Rights, Verb
from postroom.server.cluster.access import Access, rights_of
from postroom.server.cluster.refusals import (
    OTHER_CLIENTS,
    OTHERS,
    REST_SECONDS,
    TELL_SECONDS,
    Refusals,
)
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.protocol.test_contract import sample
from tests.protocol.test_rights import ROWS
from tests.server.cluster.clients import Client
from tests.server.hosting import ThreeNodes

KINDS = (*REQUESTS.asked, *REQUESTS.writes)
NAMES_WITHOUT_ROOM = ["", "n" * (CLIENT_NAME_CHARACTERS_MAX + 1), "n" * 65536, "half \ud800"]


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.db.close()


@pytest.fixture
def sessions(store: Store) -> Sessions:
    return Sessions(store.node)


def kind_of(failure: Any) -> str | None:
    return None if failure is None else failure[0]


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_client_without_rights_learns_nothing_and_changes_nothing(
    store: Store, sessions: Sessions, kind: type[Request]
) -> None:
    """The answer is the same whether its keys, queues and messages are there or not."""
    client = Client(store, sessions, "nobody")
    first = client.ask(sample(kind))
    if ROWS[name_of(kind)].place == "nothing":
        assert kind_of(first) != "AccessDenied"
        return
    assert first is not None
    assert first[0] == "AccessDenied"
    assert "; nothing was done: ask an administrator" in first[1]
    for key in (b"key", b"start", b"keys 1", b"a write", b"id", b"anchor"):
        store.db.put(key, b"value")
        store.db.run(lambda tx, key=key: tx.enqueue_message(key, b"message"))
    store.db.create_queue("queue")
    store.db.create_queue("name")
    store.db.run(lambda tx: tx.enqueue("queue", b"payload", id="id"))
    before = store.dump()
    assert client.ask(sample(kind)) == first
    assert store.dump() == before
    assert client.goodbye is None, "its stream goes on"


def test_a_granted_right_is_a_right_to_nothing_else(store: Store, sessions: Sessions) -> None:
    store.db.access.grant("shop", "read,write", b"shop/")
    shop = Client(store, sessions, "shop")
    assert shop.ask(Put(b"shop/a", b"1")) is None
    assert shop.ask(Get(b"shop/a")) is None
    for refused in (
        Put(b"other", b"1"), Get(b"other"), GetMany([b"shop/a", b"other"]),
        Scan(b"", None, 0, 9, 9), ScanChanges(b"shop", b"shop0", 0), EnqueueMessage(b"shop/a", b""),
        shop.commit(Put(b"shop/b", b"2"), Put(b"other", b"2")),
    ):  # fmt: skip
        assert kind_of(shop.ask(refused)) == "AccessDenied"
    assert store.db.get(b"shop/b") is None, "the transaction is refused as a whole"
    other = Client(store, sessions, "others")
    assert kind_of(other.ask(Get(b"shop/a"))) == "AccessDenied"


def test_the_refusal_names_the_right_and_what_the_caller_named(
    store: Store, sessions: Sessions
) -> None:
    failure = Client(store, sessions, "nobody").ask(Get(b"a key"))
    assert failure is not None
    assert failure[1].startswith("this client lacks the right 'read' on the key b'a key'; nothing")


def test_grants_add_to_a_role(store: Store, sessions: Sessions) -> None:
    reader = Client(store, sessions, "reader", Role.READ)
    assert kind_of(reader.ask(Put(b"shop/a", b"1"))) == "AccessDenied"
    store.db.access.grant("reader", "write", b"shop/")
    store.driver.settle()
    reader.take()
    reader.connect()
    assert reader.ask(Put(b"shop/a", b"1")) is None
    assert reader.ask(Get(b"elsewhere")) is None, "its role goes on"
    assert kind_of(reader.ask(Put(b"elsewhere", b"1"))) == "AccessDenied"


def test_without_grants_for_its_name_nothing_of_a_client_is_checked_but_its_role(
    store: Store, sessions: Sessions
) -> None:
    store.db.access.grant("shop", "read", b"shop/")
    assert Client(store, sessions, "other", Role.WRITE).session.rights is None
    assert Client(store, sessions, "shop", Role.ADMIN).session.rights is None
    assert Client(store, sessions, "shop", Role.WRITE).session.rights is not None


# --- changed while streams are open ---------------------------------------------------------------


def reap(key: bytes) -> ReapQueue:
    return ReapQueue(key, 10, 1 << 20, bytes(16), 60.0, wait=True)


def test_a_parked_reaper_of_a_revoked_name_ends_with_an_error(
    store: Store, sessions: Sessions
) -> None:
    store.db.access.grant("worker", "reap", b"jobs/")
    worker = Client(store, sessions, "worker")
    number = worker.send(reap(b"jobs/a"))
    store.driver.settle()
    worker.take()
    assert number not in worker.answers, "it waits"
    store.db.access.revoke("worker")
    store.driver.settle()
    worker.take()
    assert kind_of(worker.goodbye) == "Unavailable", "it comes back, and is checked anew"
    worker.connect()
    assert kind_of(worker.ask(reap(b"jobs/a"))) == "AccessDenied"
    store.db.run(lambda tx: tx.enqueue_message(b"jobs/a", b"for somebody else"))
    assert [each.value for each in store.db.peek(b"jobs/a")] == [b"for somebody else"]


def test_a_change_leaves_the_streams_of_other_clients_alone(
    store: Store, sessions: Sessions
) -> None:
    store.db.access.grant("shop", "read,reap", b"shop/")
    others = [
        Client(store, sessions, "shop"), Client(store, sessions, "writer", Role.WRITE),
        Client(store, sessions, "nobody"),
    ]  # fmt: skip
    store.db.access.grant("reports", "read", b"")
    store.db.access.grant("shop", "read", b"shop/")  # nothing new
    store.driver.settle()
    for each in others:
        each.take()
        assert each.goodbye is None


def test_a_change_between_the_connection_and_its_hello_counts(
    store: Store, sessions: Sessions
) -> None:
    client = Client(store, sessions, "shop")
    client.session = sessions.open("somebody:1", lambda: None, client.session.access)
    store.db.access.grant("shop", "read", b"shop/")
    store.driver.settle()
    opened = sessions.open("somebody:1", lambda: None, client.session.access)
    assert opened.rights != client.session.rights
    assert not sessions.admit(client.session)


def test_grants_outlive_a_restart(store: Store) -> None:
    store.db.access.grant("shop", "read", b"shop/")
    store.kill()
    client = Client(store, Sessions(store.node), "shop")
    assert client.ask(Get(b"shop/a")) is None
    assert kind_of(client.ask(Get(b"other"))) == "AccessDenied"


def test_grants_reach_every_node_and_outlive_a_change_of_the_leader() -> None:
    nodes = ThreeNodes(b"")
    leader = nodes.awaited_leader(1)
    nodes.ask(leader, GrantRights("shop", Verb.READ, b"shop/"))
    nodes.until(lambda: all([*each.grants.of("shop")] for each in nodes.nodes.values()), 1.0)
    successor = leader % 3 + 1
    nodes.lead(1, successor)
    nodes.ask(successor, RevokeRights("shop", Verb.READ, b"shop/"))
    nodes.until(lambda: not any([*each.grants.of("shop")] for each in nodes.nodes.values()), 1.0)
    nodes.close()


# --- the record -----------------------------------------------------------------------------------


def test_grants_are_added_up_listed_and_revoked_in_part(store: Store) -> None:
    rights = store.db.access
    assert rights.grant("shop", "read", b"shop/") == Verb.READ
    assert rights.grant("shop", "send,read", b"shop/") == Verb.READ | Verb.SEND
    assert rights.grant("shop", "work", queue="emails") == Verb.WORK
    assert rights.grant("eu", "read", b"shop/eu/") == Verb.READ
    grants = [
        Grant("eu", Verb.READ, b"shop/eu/"), Grant("shop", Verb.WORK, b"", "emails"),
        Grant("shop", Verb.READ | Verb.SEND, b"shop/"),
    ]  # fmt: skip
    assert rights.grants() == grants
    assert rights.grants(b"shop/eu") == grants[:1]
    assert rights.revoke("shop", "read", b"shop/") == 1
    assert rights.grants(b"shop/")[1].granted == Verb.SEND
    assert rights.revoke("shop") == 2
    assert rights.grants() == grants[:1]
    for revoke in (
        lambda: rights.revoke("shop"),
        lambda: rights.revoke("eu", "write"),
        lambda: rights.revoke("eu", "read", b"shop/"),
        lambda: rights.revoke("eu", queue="emails"),
    ):
        with pytest.raises(Invalid, match="has no such grant; nothing was changed"):
            revoke()


def test_a_grant_of_keys_and_of_a_queue_is_refused(store: Store) -> None:
    with pytest.raises(Invalid, match="not of both"):
        store.db.access.grant("shop", "read", b"shop/", queue="emails")
    with pytest.raises(Invalid, match="no verb 'fly'"):
        store.db.access.grant("shop", "read,fly")


@pytest.mark.parametrize("name", NAMES_WITHOUT_ROOM, ids=["empty", "long", "huge", "half"])
def test_a_name_that_cannot_be_stored_is_refused(store: Store, name: str) -> None:
    with pytest.raises(Invalid, match="nothing was changed"):
        store.db.access.grant(name, "read")
    assert store.db.access.grants() == []


@pytest.mark.parametrize("name", ["\x00", "a\nb", "käse 🧀", "*", "n" * CLIENT_NAME_CHARACTERS_MAX])
def test_a_strange_name_is_a_name(store: Store, name: str) -> None:
    store.db.access.grant(name, "read", b"\x00\n")
    assert store.db.access.grants() == [Grant(name, Verb.READ, b"\x00\n")]
    assert store.db.access.audit_log()[0].what.isprintable()
    assert not [*store.node.grants.of("other")], "no name stands for others"
    assert store.db.access.revoke(name) == 1


def test_a_malformed_grant_of_a_client_ends_its_stream(store: Store, sessions: Sessions) -> None:
    admin = Client(store, sessions, "admin", Role.ADMIN)
    admin.send(GrantRights("n" * 65536, int(EVERY_VERB)))
    admin.take()
    assert kind_of(admin.goodbye) is not None
    assert store.db.access.grants() == []


def test_the_number_of_grants_is_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "GRANTS_MAX", 2)
    rights = store.db.access
    rights.grant("a", "read")
    rights.grant("b", "read")
    with pytest.raises(Invalid, match="there are 2 grants"):
        rights.grant("c", "read")
    assert rights.grant("b", "write") == Verb.READ | Verb.WRITE, "no grant more"
    rights.revoke("a")
    rights.grant("c", "read")


def test_the_bytes_of_grants_are_limited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "GRANTS_BYTES_MAX", 100)
    with pytest.raises(Invalid, match="more than 100 bytes"):
        store.db.access.grant("a", "read", b"x" * 100)
    assert store.db.access.grants() == []


def test_ten_thousand_grants_have_room_and_are_checked_quickly(
    store: Store, sessions: Sessions
) -> None:
    many = [Grant("shop", Verb.READ, b"shop/%05d/" % each) for each in range(GRANTS_MAX)]
    packed = access._encode(many)
    assert len(packed) < GRANTS_BYTES_MAX
    store.node.grants = Grants(packed)
    store.node.engine.write({ACCESS_KEY: packed}, sync=True)
    client = Client(store, sessions, "shop")
    assert client.ask(Get(b"shop/09999/a")) is None
    assert kind_of(client.ask(Get(b"shop/10000/a"))) == "AccessDenied"
    assert client.session.rights is not None
    every = GetMany([b"shop/%05d/x" % each for each in range(GRANTS_MAX)])
    assert client.session.rights.lacks(every) is None
    with pytest.raises(Invalid, match="there are 10,000 grants"):
        store.db.access.grant("one more", "read")


def test_grants_and_revocations_at_a_time_lose_nothing(store: Store) -> None:
    running = [
        store.start(store.core.access.grant("shop", "read", b"%d" % each)) for each in range(50)
    ]
    running += [store.start(store.core.access.grant("shop", "write", b"7"))]
    store.driver.settle()
    assert all(each.done for each in running)
    assert len(store.db.access.grants()) == 50
    gone = [store.start(store.core.access.revoke("shop", None, b"7")) for _ in range(2)]
    store.driver.settle()
    assert [each.result() for each in gone[:1]] == [1]
    with pytest.raises(Invalid):
        gone[1].result()
    assert len(store.db.access.grants()) == 49


# --- administrators -------------------------------------------------------------------------------


def test_an_administrator_by_grants_does_not_revoke_the_last_such_right(
    store: Store, sessions: Sessions
) -> None:
    for queue in (None, EVERY_QUEUE):
        store.db.access.grant("boss", "admin", queue=queue)
    boss = Client(store, sessions, "boss")
    failure = boss.ask(RevokeRights("boss"))
    assert failure is not None
    assert failure[0] == "Invalid"
    assert "no other name may administer every key; nothing was changed" in failure[1]
    assert kind_of(boss.ask(RevokeRights("boss", Verb.ADMIN, b""))) == "Invalid"
    assert kind_of(boss.ask(RevokeRights("boss", Verb.ADMIN, None, EVERY_QUEUE))) == "Invalid"
    assert boss.ask(GrantRights("deputy", Verb.ADMIN)) is None
    assert boss.ask(GrantRights("deputy", Verb.ADMIN, b"", EVERY_QUEUE)) is None
    assert boss.ask(RevokeRights("boss")) is None


def test_an_administrator_by_its_role_may_revoke_all(store: Store, sessions: Sessions) -> None:
    store.db.access.grant("boss", "admin")
    admin = Client(store, sessions, "root", Role.ADMIN)
    assert admin.ask(RevokeRights("boss")) is None


def test_a_node_does_not_believe_who_a_client_says_that_it_is(
    store: Store, sessions: Sessions
) -> None:
    store.db.access.grant("boss", "admin")
    boss = Client(store, sessions, "boss")
    lie = RevokeRights("boss", Verb.ADMIN, b"", by="root", is_administrator=True)
    assert kind_of(boss.ask(lie)) == "Invalid"
    assert boss.ask(GrantRights("eu", Verb.READ, b"eu/", by="root")) is None
    assert store.db.access.audit_log()[-1].by == "boss"


def test_an_administrator_of_a_prefix_administers_nothing_else(
    store: Store, sessions: Sessions
) -> None:
    store.db.access.grant("boss", "admin", b"shop/")
    boss = Client(store, sessions, "boss")
    assert boss.ask(GrantRights("eu", Verb.READ, b"shop/eu/")) is None
    assert kind_of(boss.ask(GrantRights("eu", Verb.READ, b""))) == "AccessDenied"
    assert kind_of(boss.ask(GrantRights("boss", Verb.READ, b"", EVERY_QUEUE))) == "AccessDenied"
    assert kind_of(boss.ask(Get(b"shop/a"))) == "AccessDenied", "no verb includes another one"


# --- gateways ---------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [Role.NONE, Role.READ, Role.WRITE, Role.ADMIN])
@pytest.mark.parametrize("told", [Role.NONE, Role.READ, Role.WRITE, Role.ADMIN])
def test_a_caller_of_a_gateway_has_no_right_that_one_of_both_lacks(own: Role, told: Role) -> None:
    granted = [Grant("gateway", Verb.READ | Verb.WRITE, b"a/"), Grant("shop", Verb.READ, b"a/b/")]
    grants = Grants(access._encode(granted))
    terms = Access(own, name="gateway", on_behalf=OnBehalf("shop", told.value))
    rights = rights_of(terms, grants)
    of_gateway, of_shop = (
        rights_of(terms._replace(on_behalf=None), grants),
        Rights([*granted_by(told), *grants.of("shop")]),
    )
    for request in (Get(b"a/b/c"), Get(b"a/x"), Put(b"a/b/c", b""), Put(b"z", b""), Get(b"z")):
        gateway_may = own is Role.ADMIN or (
            of_gateway is not None and of_gateway.lacks(request) is None
        )
        may = gateway_may and of_shop.lacks(request) is None
        assert (rights is None or rights.lacks(request) is None) == may


def test_a_caller_that_is_told_by_no_role_has_the_rights_of_its_gateway() -> None:
    terms = Access(Role.WRITE, name="gateway", on_behalf=OnBehalf("shop"))
    assert rights_of(terms, Grants()) is None


@pytest.mark.parametrize("argument", [b"x", b"\x92\xa4shop\xa4root", b"\x91\x01"])
def test_a_malformed_name_of_a_caller_is_refused(argument: bytes) -> None:
    with pytest.raises(AccessDenied, match="malformed"):
        Access(Role.ADMIN).for_another(argument)


def test_a_client_that_claims_to_talk_for_another_is_named_beside_it() -> None:
    terms = Access(Role.WRITE, name="gateway", on_behalf=OnBehalf("root"))
    assert terms.who("10.0.0.1") == "root through gateway"
    assert Access().who("10.0.0.1") == "10.0.0.1"


# --- the audit log --------------------------------------------------------------------------------


def test_the_audit_log_tells_who_changed_what_and_when(store: Store, sessions: Sessions) -> None:
    admin = Client(store, sessions, "root", Role.ADMIN)
    admin.ask(GrantRights("shop", Verb.READ | Verb.WRITE, b"shop/"))
    admin.ask(RevokeRights("shop", Verb.WRITE))
    store.db.access.grant("shop", "work", queue="emails")
    log = store.db.access.audit_log()
    assert [(each.by, each.action, each.what) for each in log] == [
        ("root", "granted", "read,write on keys with b'shop/' to 'shop'"),
        ("root", "revoked", "write on keys with b'shop/' from 'shop'"),
        ("", "granted", "work on the queue 'emails' to 'shop'"),
    ]
    assert [each.at for each in log] == sorted(each.at for each in log)
    assert store.db.access.audit_log(limit=1) == log[-1:]


def test_refused_requests_are_counted_and_cost_no_write(store: Store, sessions: Sessions) -> None:
    shop = Client(store, sessions, "shop")
    reader = Client(store, sessions, "reader", Role.READ)

    def flood() -> None:
        for each in range(1000):
            shop.ask(Get(b"other/%d" % each))
        reader.ask(Delete(b"other"))

    assert store.writes_of(flood) == 0
    store.advance(TELL_SECONDS + 1)
    log = store.db.access.audit_log()
    assert sum(each.times for each in log if each.by == "shop") == 1000
    assert len(log) == REFUSALS_TOLD_PER_CLIENT_MAX + 2
    assert {each.action for each in log} == {"refused"}
    assert log[0].what == "this client lacks the right 'read' on the key b'other/0'"
    assert [each.what[:32] for each in log if each.by == "reader"] == [
        "this client has the role 'read',"
    ]
    assert store.writes_of(lambda: store.advance(60)) <= 2, "an idle store tells nothing more"


class NodeOfRefusals:
    """A node that keeps what is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.timers: list[Any] = []
        self.answer: Any = None

    @property
    def calls(self) -> Any:
        return self

    def call_after(self, seconds: float, act: Any) -> None:
        self.timers.append(act)

    def carry(self, recipient: Any, request: Any, answered: Any) -> None:
        self.told.append(request)
        answered(self.answer)


def test_the_refusals_of_a_node_are_bounded_whoever_floods_it() -> None:
    node: Any = NodeOfRefusals()
    refusals = Refusals(node)
    for client in range(1000):
        for request in range(20):
            refusals.note(f"client {client}", f"request {request}; nothing was done")
    assert len(node.timers) == 1
    node.timers.pop()()
    (told,) = node.told
    assert len(told.refusals) <= 2 * REFUSALS_TOLD_MAX + 1
    assert sum(each.times for each in told.refusals) == 20_000
    others = {each.by: each.times for each in told.refusals if each.what == OTHERS}
    assert others[OTHER_CLIENTS] > 19_000
    assert sum(each.by == "client 0" for each in told.refusals) == REFUSALS_TOLD_PER_CLIENT_MAX + 1


def test_a_flood_of_refusals_has_a_line_a_minute(store: Store, sessions: Sessions) -> None:
    shop = Client(store, sessions, "shop")
    for _ in range(10):
        shop.ask(Get(b"other"))
        store.advance(TELL_SECONDS + 1)
    first, *later = [each.times for each in store.db.access.audit_log()]
    assert (first, later) == (1, [])
    store.advance(REST_SECONDS)
    assert [each.times for each in store.db.access.audit_log()] == [1, 9]
    store.advance(REST_SECONDS)
    Client(store, sessions, "shop").ask(Get(b"other"))
    store.advance(TELL_SECONDS + 1)
    assert [each.times for each in store.db.access.audit_log()] == [1, 9, 1]


def test_refusals_that_could_not_be_told_are_told_later() -> None:
    node: Any = NodeOfRefusals()
    refusals = Refusals(node)
    node.answer = AccessDenied("no leader")
    refusals.note("shop", "something; nothing was done")
    node.timers.pop()()
    refusals.note("shop", "something; nothing was done")
    node.answer = None
    node.timers.pop()()
    assert [each.times for each in node.told[-1].refusals] == [2]
    node.timers.pop()()
    assert node.timers == []


def test_the_audit_log_is_trimmed_and_refusals_do_not_push_changes_out(store: Store) -> None:
    store.db.access.grant("first", "read")
    entry = audit.RefusedRequests("flood", "something", 1)
    for _ in range(AUDITED_REFUSALS_MAX // 64 + 2):
        store.driver.run(store.driver.send(audit.NoteRefusals([entry] * 64)).__await__())  # type: ignore[arg-type]
    log = store.db.access.audit_log(limit=10_000)
    assert len(log) == AUDITED_REFUSALS_MAX + 1
    assert log[0].what.endswith("'first'")


def test_old_changes_leave_the_audit_log(store: Store) -> None:
    for each in range(AUDITED_CHANGES_MAX + 3):
        store.db.access.grant("shop", "read", b"%d" % each)
        store.db.access.revoke("shop", None, b"%d" % each) if each % 2 else None
    log = store.db.access.audit_log(limit=10_000)
    assert len(log) == AUDITED_CHANGES_MAX
    assert log[-1].what == f"read on keys with b'{AUDITED_CHANGES_MAX + 2}' to 'shop'"


def test_actions_that_a_client_did_for_others_are_told_with_its_name(
    store: Store, sessions: Sessions
) -> None:
    pages = Client(store, sessions, "pages", Role.ADMIN)
    done, refused = NotedAction("mara", "done", "3 replayed"), NotedAction("eve", "refused", "x", 9)
    assert pages.ask(NoteActions([done, refused], through="root")) is None
    assert [(each.by, each.action, each.times) for each in store.db.access.audit_log()] == [
        ("eve through pages", "refused", 9), ("mara through pages", "done", 1),
    ]  # fmt: skip
    writer = Client(store, sessions, "writer", Role.WRITE)
    assert kind_of(writer.ask(NoteActions([done]))) == "AccessDenied"


def test_actions_push_neither_changes_nor_each_other_out_of_the_audit_log(store: Store) -> None:
    store.db.access.grant("shop", "read")
    store.db.access.note([("mara", "done", "", 1)])
    for word, most in (("refused", AUDITED_REFUSALS_MAX), ("done", AUDITED_ACTIONS_MAX)):
        for first in range(0, most + ACTIONS_TOLD_MAX, ACTIONS_TOLD_MAX):
            store.db.access.note(
                [("mara", word, f"{first + n}", 1) for n in range(ACTIONS_TOLD_MAX)]
            )
    log = store.db.access.audit_log(limit=10_000)
    numbers = Counter(each.action for each in log)
    assert numbers == {"granted": 1, "done": AUDITED_ACTIONS_MAX, "refused": AUDITED_REFUSALS_MAX}


def test_long_names_and_descriptions_of_actions_are_cut(store: Store) -> None:
    store.db.access.note([("n" * 9999, "failed", "w" * 9999, 1)])
    (entry,) = store.db.access.audit_log()
    assert len(entry.by) == CLIENT_NAME_CHARACTERS_MAX
    assert len(entry.what) == AUDITED_CHARACTERS_MAX
