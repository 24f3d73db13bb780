"""A node as it is served: how it begins, alone, with others, and elsewhere."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.remote.nodes import remove_node, survey
from postroom.client.routing import links
from postroom.errors import Invalid
from postroom.kv.engine import Budget
from postroom.ranges.nodes import AdmitNode
from postroom.server.cluster import leaderless
from postroom.server.cluster.nodes_service import JoinRequest, Questions
from postroom.server.cluster.security import Security
from tests.cluster.places import Loopback
from tests.server.cluster.served import Serving, connect, get, put, serving
from tests.server.cluster.streams import run, until


def test_a_node_founds_alone_and_comes_back(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        for key in (b"first", b"second"):
            async with serving(tmp_path / "a", addresses[0]):
                await put(addresses[0], key)
        async with serving(tmp_path / "a", addresses[0]) as node:
            assert await get(addresses[0], b"first") == b"value"
            assert node.served.node.node_id == 1

    run(main())


def test_a_node_shares_out_its_budget_of_memory(tmp_path: Path, addresses: list[str]) -> None:
    budget = Budget(24 << 20)

    async def main() -> None:
        async with serving(
            tmp_path / "a", addresses[0], memory_bytes=budget.memory_bytes
        ) as node, await connect(addresses[0]) as db:  # fmt: skip
            assert (await db.status()).storage.memory_bytes == budget.memory_bytes
            storage: Any = node.served.node.engine
            assert storage.state._engine._write_buffer_bytes == budget.write_buffer_bytes
            heads = storage.applied._heads
            assert len(heads._small) + heads._large_bytes == budget.heads_bytes
            assert node.served.node.root.replica.cache._bytes_max == budget.values_bytes // 2

    run(main())


def test_three_nodes_in_one_process(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        nodes = [Serving(tmp_path / each[-5:], each, *addresses) for each in addresses]
        try:
            for node in nodes:
                await node.wait_ready()
            await put(addresses[2], b"key")
            assert await get(addresses[1], b"key") == b"value"
            assert sorted(node.served.node.node_id for node in nodes) == [1, 2, 3]
        finally:
            for node in nodes:
                await node.stop()

    run(main())


def test_an_embedded_store_goes_on_as_a_cluster(tmp_path: Path, addresses: list[str]) -> None:
    with postroom.open(tmp_path / "a") as db:
        db.put(b"old", b"value")
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first):
            assert await get(first, b"old") == b"value"
            async with serving(tmp_path / "b", second, first) as joined:
                assert joined.served.node.node_id == 2
                group = joined.served.node.root.replica.group
                await until(lambda: len(group.members) == 2)
                assert await get(second, b"old") == b"value"

    run(main())
    with pytest.raises(Invalid, match="postroom serve"):
        postroom.open(tmp_path / "a")
    with pytest.raises(Invalid, match=first):
        postroom.open(tmp_path / "b")


def test_a_cluster_of_one_may_be_opened_embedded(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        async with serving(tmp_path / "a", addresses[0]):
            await put(addresses[0], b"served")

    run(main())
    with postroom.open(tmp_path / "a") as db:
        assert db.get(b"served") == b"value"
        db.put(b"embedded", b"value")

    async def again() -> None:
        async with serving(tmp_path / "a", addresses[0]):
            assert await get(addresses[0], b"embedded") == b"value"

    run(again())


def test_a_store_of_its_own_does_not_join_another(tmp_path: Path, addresses: list[str]) -> None:
    with postroom.open(tmp_path / "b") as db:
        db.put(b"mine", b"value")
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first):
            node = Serving(tmp_path / "b", second, first)
            with pytest.raises(Invalid, match="empty folder"):
                await node.task

    run(main())
    with postroom.open(tmp_path / "b") as db:  # nothing was changed
        assert db.get(b"mine") == b"value"


def test_a_node_of_another_cluster_says_so(
    tmp_path: Path, addresses: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "b", second):
            await put(second, b"where")
        async with (
            serving(tmp_path / "a", first),
            serving(tmp_path / "b", second, first, second),
        ):
            await until(lambda: "another cluster" in caplog.text)
            assert await get(first, b"where") is None
            assert await get(second, b"where") == b"value"

    with caplog.at_level(logging.ERROR):
        run(main())


def test_a_node_that_moves_tells_the_others(tmp_path: Path, addresses: list[str]) -> None:
    first, second, third = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first):
            async with serving(tmp_path / "b", second, first) as joined:
                group = joined.served.node.root.replica.group
                await until(lambda: len(group.members) == 2)
            async with serving(tmp_path / "b", third, first) as moved:
                await put(third, b"key")
                nodes = moved.served.node.nodes
                assert nodes is not None
                assert [node.address for node in nodes.nodes] == [first, third]

    run(main())


def test_all_nodes_may_move_at_once(tmp_path: Path, addresses: list[str]) -> None:
    """The record of where they are cannot be changed before they have found each other."""
    place = Loopback()
    elsewhere = [place.address(number) for number in (1, 2, 3)]
    folders = [tmp_path / str(number) for number in (1, 2, 3)]

    async def main() -> None:
        for where in (addresses, elsewhere):
            nodes = [
                Serving(folder, each, *where) for folder, each in zip(folders, where, strict=True)
            ]
            try:
                for node in nodes:
                    await node.wait_ready()
                await put(where[0], b"key")
            finally:
                for node in nodes:
                    await node.stop()

    run(main())


def test_a_wrong_address_is_not_admitted(tmp_path: Path, addresses: list[str]) -> None:
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first) as node:
            impostor = Serving(tmp_path / "b", first, first, listen=second)
            with pytest.raises(Invalid, match="another node is at"):
                await impostor.task
            questions = Questions(Security(None))
            with pytest.raises(Invalid, match="another node is at"):
                await questions.admit([first], JoinRequest(bytes(16), first))
            nobody = await questions.admit([first], JoinRequest(bytes(16), second))
            assert nobody is None
            nodes = node.served.node.nodes
            assert nodes is not None
            assert [(each.node_id, each.retired) for each in nodes.nodes] == [(1, False)]

    run(main())


def test_a_wrong_address_is_not_admitted_by_an_idle_leader(
    tmp_path: Path, addresses: list[str]
) -> None:
    """Its lease has lapsed; it gets it again with the very request that it must not make."""
    first, second, third = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first, lease_seconds=0.2) as node:
            await until(lambda: not node.served.node.root.replica.serves)
            questions = Questions(Security(None))
            assert await questions.admit([first], JoinRequest(bytes(16), third)) is None
            async with serving(tmp_path / "b", second, first) as other:
                await until(lambda: other.served.node.nodes is not None)
                await until(lambda: not node.served.node.root.replica.serves)
            mistaken = Serving(tmp_path / "b", first, first, listen=second)
            with pytest.raises(Invalid, match="another node is at"):
                await mistaken.task
            nodes = node.served.node.nodes
            assert nodes is not None
            assert [each.address for each in nodes.nodes] == [first, second]

    run(main())


def test_a_wrong_address_in_the_record_is_corrected(tmp_path: Path, addresses: list[str]) -> None:
    """While its node was away, another one was taken for it, or it was started elsewhere."""
    first, second, third = addresses
    elsewhere = Loopback().address(1)

    async def main() -> None:
        async with (
            serving(tmp_path / "a", first) as node,
            serving(tmp_path / "b", second, first) as other,
            serving(tmp_path / "c", third, first),
        ):
            group = node.served.node.root.replica.group
            await until(lambda: len(group.members) == 3)
            store_id, driver = other.served._joining.store_id, node.served._driver
            assert driver is not None
            moved = await driver.send(AdmitNode(store_id, elsewhere))
            assert [each.address for each in moved.nodes.nodes] == [first, elsewhere, third]

            def is_corrected() -> bool:
                nodes = node.served.node.nodes
                return nodes is not None and [each.address for each in nodes.nodes] == addresses

            await until(is_corrected)

    run(main())


def test_one_of_two_nodes_at_an_address_is_shown_as_missing(
    tmp_path: Path, addresses: list[str]
) -> None:
    """A survey showed only the one that answers."""
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first) as node:
            async with serving(tmp_path / "b", second, first) as other:
                await until(lambda: other.served.node.nodes is not None)
                store_id = other.served._joining.store_id
                # While both live: it may vote already.
                await node.served._driver.send(AdmitNode(store_id, first))  # type: ignore[union-attr]
            found = await survey([first], None, None, Random(1))
            assert [(each.node_id, each.status is None) for each in found.nodes] == [
                (1, False),
                (2, True),
            ]
            assert "another node answers" in str(found.nodes[1].error)

    run(main())


def test_clients_are_told_who_joins(
    tmp_path: Path, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without asking: who is busy never looks up."""
    monkeypatch.setattr(links, "IDLE_SECONDS", 3600.0)
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first), await connect(first) as db:
            await db.put(b"key", b"value")
            known = db._sender.router.addresses  # type: ignore[attr-defined]
            assert known.known == [first]
            async with serving(tmp_path / "b", second, first):
                await until(lambda: second in known.known)

    run(main())


def test_a_node_that_was_removed_meanwhile_is_told(tmp_path: Path, addresses: list[str]) -> None:
    first, second, _ = addresses

    async def main() -> None:
        async with serving(tmp_path / "a", first):
            async with serving(tmp_path / "b", second, first) as joined:
                group = joined.served.node.root.replica.group
                await until(lambda: len(group.members) == 2)
            removed = Serving(tmp_path / "b", second, first)
            await removed.wait_ready()
            left = await remove_node([first], 2, None, None, Random(1), 20.0)
            assert [each.node_id for each in left.nodes] == [1]
            await removed.task  # it notices, and ends in good order
            back = Serving(tmp_path / "b", second, first)
            with pytest.raises(Invalid, match="removed from the cluster for good"):
                await back.task

    run(main())


def test_without_a_majority_it_says_once_who_is_not_heard(
    tmp_path: Path, addresses: list[str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(leaderless, "PATIENCE_SECONDS", 3600.0)
    first, second, _ = addresses
    line = f"no node has led for 0.5 s: .* not heard: node 2 at {second} (.nobody listens there.)"

    def told() -> int:
        return len([each for each in caplog.messages if re.search(line, each)])

    async def main() -> None:
        async with (
            serving(tmp_path / "a", first),
            serving(tmp_path / "b", second, first) as joined,
        ):
            group = joined.served.node.root.replica.group
            await until(lambda: len(group.members) == 2)
        caplog.clear()
        again = Serving(tmp_path / "a", first)
        await until(  # it knows what it will say
            lambda: again.served._peers is not None and again.served._peers.connection_error(2)
        )
        monkeypatch.setattr(leaderless, "PATIENCE_SECONDS", 0.5)
        await until(told)
        await asyncio.sleep(1.0)
        assert told() == 1
        async with serving(tmp_path / "b", second, first):
            await until(lambda: "leads now" in caplog.text)
            await again.wait_ready()
        await again.stop()

    with caplog.at_level(logging.INFO):
        run(main())
