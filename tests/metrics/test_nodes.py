"""Metrics of served nodes: alone, three of them, without a leader."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import postroom
from postroom.metrics.collector import ServedStore, StoreCollector
from postroom.metrics.endpoint import Endpoint
from tests.cli.commands import failed_with, invoke
from tests.cluster.harness import eventually
from tests.gateway.processes import free_address, running
from tests.metrics.scraping import Scraped, scraped
from tests.server.cluster.served import Serving, connect
from tests.server.cluster.streams import run


async def until(address: str, holds: Callable[[Scraped], bool]) -> Scraped:
    """Return what a node tells once ``holds`` is true of it."""

    def look() -> Scraped | None:
        """Look whether the metrics are as they should be."""
        with suppress(URLError):  # it does not listen yet
            told = scraped(address)
            return told if holds(told) else None
        return None

    return await asyncio.to_thread(lambda: eventually(look)) or Scraped(())


def test_the_option_metrics_serves_them_until_the_node_ends(tmp_path: Path) -> None:
    listen, metrics = free_address(), free_address()
    with running(
        "serve", "--insecure", "--data", str(tmp_path / "a"), "--listen", listen,
        "--metrics", metrics,
    ), postroom.connect(listen, insecure=True) as db:  # fmt: skip
        db.put(b"k", b"v")
        told = scraped(metrics)
        assert told.get("up") == told.get("leads") == 1
        assert told.get("sessions") == 1
        assert (told.get("connections") or 0) >= 1
        assert told.get("requests_refused_total", reason="overload") == 0


def test_an_address_that_another_program_has_makes_no_folder(tmp_path: Path) -> None:
    address = free_address()
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        result = invoke(
            "serve", "--path", str(tmp_path / "a"), "--listen", free_address(), "--insecure",
            "--metrics", address,
        )  # fmt: skip
    assert failed_with(result, 1, f"cannot listen at {address}")
    assert not (tmp_path / "a").exists()


def test_three_nodes_tell_of_each_other_and_the_same_messages(
    tmp_path: Path, addresses: list[str]
) -> None:
    async def main() -> None:
        nodes = [Serving(tmp_path / each[-5:], each, *addresses) for each in addresses]
        metrics = [free_address() for _ in nodes]
        for node, address in zip(nodes, metrics, strict=True):
            node.served.companions.append(
                Endpoint(address, StoreCollector(ServedStore(node.served)))
            )
        try:
            for node in nodes:
                await node.wait_ready()
            async with await connect(*addresses) as db, db.begin() as tx:
                tx.enqueue_message(b"inbox", b"v")
            told = [
                await until(each, lambda told: told.get("messages_delivered") == 1)
                for each in metrics
            ]
            assert sum(each.get("leads") or 0 for each in told) == 1
            assert {each.get("has_leader") for each in told} == {1}
            assert {each.get("messages_unaccounted") for each in told} == {0}
            (leader,) = [each for each in told if each.get("leads")]
            assert len(leader.labels("peer_entries_behind", "peer")) == 2
            for each in metrics:
                heard = await until(
                    each, lambda told: bool(told.labels("peer_clock_offset_seconds", "peer"))
                )
                assert abs(heard.get("clock_offset_seconds") or 0) < 0.5
        finally:
            for node in nodes:
                await node.stop()

    run(main())


def test_a_node_without_a_leader_tells_what_it_knows(tmp_path: Path, addresses: list[str]) -> None:
    async def main() -> None:
        nodes = [Serving(tmp_path / each[-5:], each, *addresses) for each in addresses]
        metrics = free_address()
        nodes[0].served.companions.append(
            Endpoint(metrics, StoreCollector(ServedStore(nodes[0].served)))
        )
        try:
            for node in nodes:
                await node.wait_ready()
            async with await connect(*addresses) as db, db.begin() as tx:
                tx.enqueue_message(b"inbox", b"v")
            await until(metrics, lambda told: told.get("messages_delivered") == 1)
            for node in nodes[1:]:
                await node.stop()
            told = await until(metrics, lambda told: told.get("has_leader") == 0)
            assert told.get("up") == 1
            assert told.get("ranges", state="leaderless") == 1
            assert told.get("messages_delivered") == 1
        finally:
            for node in nodes:
                if not node.task.done():
                    await node.stop()

    run(main())


def test_a_node_whose_loop_hangs_is_told_by_its_endpoint(
    tmp_path: Path, addresses: list[str]
) -> None:
    async def main() -> None:
        node = Serving(tmp_path / "a", addresses[0])
        metrics, goes_on = free_address(), threading.Event()
        node.served.companions.append(Endpoint(metrics, StoreCollector(ServedStore(node.served))))

        def look_while_it_hangs() -> Scraped:
            try:
                return eventually(lambda: down(metrics)) or Scraped(())
            finally:
                goes_on.set()

        try:
            await node.wait_ready()
            await until(metrics, lambda told: told.get("leads") == 1)
            looking = asyncio.create_task(asyncio.to_thread(look_while_it_hangs))
            await asyncio.sleep(0)  # it has begun
            goes_on.wait(60)  # the loop hangs
            told = await looking
            assert told.get("leads") == 1
            assert (told.get("sample_age_seconds") or 0) > 1
            await until(metrics, lambda told: told.get("up") == 1)
        finally:
            await node.stop()

    run(main())


def down(address: str) -> Scraped | None:
    """Return what is told of a node that does not answer; ``None``: it answers."""
    told = scraped(address)
    return told if told.get("up") == 0 else None


def test_a_node_that_has_not_joined_tells_of_its_process(
    tmp_path: Path, addresses: list[str]
) -> None:
    async def main() -> None:
        node = Serving(tmp_path / "a", addresses[0], *addresses)
        metrics = free_address()
        node.served.companions.append(Endpoint(metrics, StoreCollector(ServedStore(node.served))))
        await until(metrics, lambda told: told.get("connections") == 0)
        await node.stop()

    run(main())
