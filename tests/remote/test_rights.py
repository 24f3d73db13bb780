"""Clients over the network that have only the rights granted to the names of their tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import AccessDenied
from postroom.server.cluster.access import Tokens
from tests.cluster.harness import eventually
from tests.remote.certificates import Authority
from tests.remote.servers import Server

REVOKED_SECONDS = 20.0
"""A revoked right ends within a second; a machine that is held up is given longer."""


class Shop:
    """A store with an administrator, and a client without rights of its own."""

    def __init__(self, server: Server, tls: postroom.TLS) -> None:
        self._server = server
        self._address, self._tls = server.address, tls
        self.admin = self.connect("of-the-admin")
        self.shop = self.connect("of-the-shop")

    def connect(self, token: str) -> postroom.Database:
        return postroom.connect(self._address, tls=self._tls, token=token)

    def waiting(self) -> int:
        """Return the number of calls that wait at the node."""

        async def count() -> int:
            return self._server.sessions.node.replicas.sizes()["parked"]

        return self._server.on_loop(count())

    def grant(self, verbs: str, prefix: bytes = b"", queue: str | None = None) -> None:
        self.admin.access.grant("shop", verbs, prefix, queue=queue)


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Shop]:
    authority, tokens = Authority(tmp_path / "authority"), tmp_path / "tokens"
    tokens.write_text("admin of-the-admin root\nnone of-the-shop shop\n")
    tokens.chmod(0o600)
    with Server(authority.server(Tokens(tokens))) as server:
        made = Shop(server, authority.client())
        yield made
        made.shop.close()
        made.admin.close()


def refused(call: Callable[[], Any]) -> bool:
    with pytest.raises(AccessDenied, match="this client lacks the right"):
        call()
    return True


def test_a_client_works_within_its_prefix_and_nowhere_else(it: Shop) -> None:
    shop = it.shop
    assert refused(lambda: shop.get(b"shop/a"))
    it.grant("read,write", b"shop/")
    shop.put(b"shop/a", b"1")
    assert shop.increment(b"shop/n") == 1
    with shop.begin() as tx:
        assert tx.get(b"shop/a") == b"1"
        tx.put(b"shop/b", b"2")
        assert tx.get_for_update(b"shop/a") == b"1"
    assert [key for key, _ in shop.scan(*postroom.prefix(b"shop/"))] == [
        b"shop/a", b"shop/b", b"shop/n",
    ]  # fmt: skip
    with shop.snapshot() as snapshot:
        assert snapshot.get(b"shop/a") == b"1"
    assert shop.delete_range(*postroom.prefix(b"shop/")) == 3
    it.admin.put(b"secret", b"value")
    assert refused(lambda: shop.get(b"secret"))
    assert refused(lambda: shop.get(b"nothing here"))
    assert refused(lambda: list(shop.scan()))
    assert refused(shop.inboxes)
    assert refused(shop.dead_letters)
    assert refused(shop.scheduled)
    assert refused(shop.status)
    assert refused(shop.ranges)
    assert refused(shop.partitions)
    assert refused(lambda: shop.split(b"m"))
    assert refused(lambda: next(iter(shop.watch(b"secret"))))
    assert refused(lambda: shop.access.grant("shop", "read"))


def test_messages_are_sent_with_one_right_and_reaped_with_another(it: Shop) -> None:
    it.grant("send", b"jobs/")
    it.shop.run(lambda tx: tx.enqueue_message(b"jobs/a", b"1"))
    assert refused(lambda: it.shop.run(lambda tx: tx.reap_queue(b"jobs/a")))
    assert refused(lambda: it.shop.peek(b"jobs/a"))
    it.admin.access.revoke("shop")
    it.grant("reap", b"jobs/")
    assert eventually(lambda: reaped(it.shop)) == [b"1"]
    assert reaped(it.shop) == [], "an empty inbox is found empty with the right to reap"
    assert [each.key for each in it.shop.inboxes(*postroom.prefix(b"jobs/"))] == []
    assert refused(lambda: it.shop.run(lambda tx: tx.enqueue_message(b"jobs/a", b"2")))


def reaped(db: postroom.Database) -> list[bytes]:
    return list(db.run(lambda tx: [each.value for each in tx.reap_queue(b"jobs/a")]))


def test_queues_are_filled_with_one_right_and_worked_with_another(it: Shop) -> None:
    it.admin.create_queue("emails")
    it.admin.create_queue("others")
    it.grant("enqueue", queue="emails")
    it.shop.run(lambda tx: tx.enqueue("emails", b"1"))
    assert refused(lambda: it.shop.run(lambda tx: tx.enqueue("others", b"1")))
    assert refused(lambda: it.shop.queue("emails").claim())
    it.admin.access.revoke("shop")
    it.grant("work", queue="emails")
    (message,) = it.shop.queue("emails").claim(wait=5)
    message.extend(60)
    message.acknowledge()
    assert refused(lambda: it.shop.run(lambda tx: tx.enqueue("emails", b"1")))
    assert refused(lambda: it.shop.queue("emails").stats())
    assert refused(it.shop.queues)


def test_a_worker_needs_no_other_right_than_to_work(it: Shop) -> None:
    it.admin.create_queue("emails")
    it.admin.run(lambda tx: tx.enqueue("emails", b"1"))
    it.grant("work", queue="emails")
    it.grant("write", b"done/")
    worker = postroom.Worker(it.shop)

    @worker.task(queue="emails")
    def send(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        tx.put(b"done/" + message.payload, b"yes")

    thread = threading.Thread(target=worker.run)
    thread.start()
    assert eventually(lambda: it.admin.get(b"done/1")) == b"yes"
    worker.stop()
    thread.join()


def test_a_parked_reaper_ends_when_its_right_is_revoked(it: Shop) -> None:
    it.grant("reap", b"jobs/")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            it.shop.run(lambda tx: tx.reap_queue(b"jobs/a", wait=3600))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(it.waiting)
    began = time.monotonic()
    it.admin.access.revoke("shop")
    thread.join(REVOKED_SECONDS)
    assert time.monotonic() - began < REVOKED_SECONDS
    assert [type(each) for each in ended] == [AccessDenied]


def test_a_transaction_that_reads_where_it_may_not_write_is_tried_again(it: Shop) -> None:
    """The keys that others have changed cannot be locked for the next try, which goes on anyway."""
    it.grant("read", b"prices/")
    it.grant("write", b"shop/")
    it.admin.put(b"prices/a", b"1")
    tries: list[bytes | None] = []

    def buy(tx: postroom.Transaction) -> None:
        price = tx.get(b"prices/a")
        tries.append(price)
        if len(tries) == 1:
            it.admin.put(b"prices/a", b"2")
        tx.put(b"shop/bought", price or b"")

    it.shop.run(buy)
    assert tries == [b"1", b"2"]
    assert it.admin.get(b"shop/bought") == b"2"
