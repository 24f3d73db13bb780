"""A store as another client may use it: what that client has no right to is never sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import postroom
from postroom.errors import AccessDenied, Invalid
from postroom.ranges.access import Grant
from postroom.ranges.rights import Verb
from tests.client.stores import Store


@pytest.fixture(params=[False, True], ids=["embedded", "remote"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    made = Store(remote=request.param)
    yield made
    made.db.close()


def as_shop(store: Store, *grants: Grant, role: str = "none") -> Any:
    return store.core.as_client(store.core.access.rights(role, grants))


def keys_of(db: Any) -> Callable[..., Any]:
    async def read(*span: Any) -> list[bytes]:
        return [key async for key, _ in db.scan(*span)]

    return read


def test_a_client_reads_and_writes_where_it_has_the_right(store: Store) -> None:
    run, shop = store.driver.run, as_shop(store, Grant("shop", Verb.READ | Verb.WRITE, b"shop/"))
    store.db.put(b"other", b"1")
    run(shop.put(b"shop/a", b"1"))
    assert run(shop.get(b"shop/a")) == b"1"
    assert run(keys_of(shop)(b"shop/", b"shop0")) == [b"shop/a"]
    for refused in (
        shop.get(b"other"), shop.get(b"absent"), shop.put(b"other", b"2"),
        keys_of(shop)(b"", None), shop.queues(), shop.status(), shop.ranges(), shop.peek(b"other"),
        shop.dead_letters(), shop.access.grants(), shop.access.audit_log(),
    ):  # fmt: skip
        with pytest.raises(AccessDenied, match="lacks the right"):
            run(refused)
    assert store.db.get(b"other") == b"1"


def test_a_transaction_with_a_part_that_is_not_allowed_changes_nothing(store: Store) -> None:
    shop = as_shop(store, Grant("shop", Verb.READ | Verb.WRITE, b"shop/"))

    async def write() -> None:
        async with shop.begin() as tx:
            tx.put(b"shop/a", b"1")
            tx.put(b"other", b"1")

    with pytest.raises(AccessDenied, match="'write' on the key b'other'"):
        store.driver.run(write())
    assert store.db.get(b"shop/a") is None


def test_a_role_allows_what_it_does_at_nodes(store: Store) -> None:
    run = store.driver.run
    reader = as_shop(store, role="read")
    assert run(reader.ranges())
    with pytest.raises(AccessDenied):
        run(reader.put(b"a", b"1"))
    with pytest.raises(AccessDenied):
        run(reader.access.grants())
    with pytest.raises(Invalid, match="there is no role"):
        as_shop(store, role="root")


def test_the_status_of_an_embedded_store_needs_its_rights() -> None:
    with postroom.open(":memory:") as db:
        rights = db.core.access.rights
        assert db.wait(db.core.as_client(rights("read", [])).status()).counters.enqueued == 0
        with pytest.raises(AccessDenied):
            db.wait(db.core.as_client(rights("none", [])).status())
        assert db.wait(db.core.as_client(rights("admin", [])).access.grants()) == []


def test_packed_values_are_limited_too() -> None:
    with postroom.open(":memory:", codec="json") as db:
        db.put(b"a", [1])
        limited = db.core.as_client(db.core.access.rights("none", []))
        with pytest.raises(AccessDenied):
            db.wait(limited.as_stored().get(b"a"))
        reader = db.core.as_client(db.core.access.rights("read", []))
        assert db.wait(reader.as_stored().get(b"a")) == b"[1]"
        assert db.wait(reader.get(b"a")) == [1]
