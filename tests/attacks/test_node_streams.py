"""A certificate of the authority, with a valid host name, on the streams between nodes.

The holder of one that is not the node's cannot act as the node, or be called as it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest

from postroom.errors import Invalid
from postroom.kv.memory import MemoryEngine
from postroom.protocol.streams import DENIED, UNAVAILABLE
from postroom.ranges.nodes import Nodes, short
from postroom.server.cluster import formation
from postroom.server.cluster.dialing import Dialer, Introduction, NoAnswer, encode, proof_of
from postroom.server.cluster.joining import Joining
from postroom.server.cluster.security import Security
from postroom.server.opening import read_store
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import CLUSTER, Talker, run, store, until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


SECRET = b"s" * 32


def nodes_of(*talkers: Talker) -> Nodes:
    """Return the record of the nodes, with the key of each."""
    return Nodes(CLUSTER, 100, tuple(
        msgspec.structs.replace(each.descriptor, fingerprint=each.security.fingerprint)
        for each in talkers
    ))  # fmt: skip


@asynccontextmanager
async def talking(authority: Authority) -> AsyncIterator[list[Talker]]:
    """Start nodes 1 and 2, and a stranger at another port of their host; nobody talks yet."""
    each = [Talker(number, Security(authority.node("127.0.0.1"))) for number in (1, 2, 2)]
    for one in each:
        await one.listen()
    try:
        yield each
    finally:
        for one in each:
            await one.close()


async def stream(talker: Talker, to: Talker, **changes: Any) -> str:
    """Return how a stream as node 2 ends, on which a frame is sent: "open" if it stays."""
    said = Introduction(1, CLUSTER, 2, store(2), talker.address, to.node_id)
    dialer = Dialer(talker.security)
    opened = None
    try:
        said = msgspec.structs.replace(said, **changes)
        opened = await dialer.open(to.address, encode(said), lambda: None)
        opened.write([b"forged"])
        try:
            async with asyncio.timeout(0.5):
                await opened.until_ended()
        except TimeoutError:
            return "open"
        return "ended"
    except NoAnswer as error:
        return error.code
    finally:
        if opened is not None:
            opened.close()


def test_another_key_cannot_act_as_a_node(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with talking(authority) as (one, two, stranger):
            one.talk(nodes_of(one, two))
            for _ in range(3):
                assert await stream(stranger, one) == DENIED
            assert one.frames == []
            assert "sha256:" in caplog.text
            assert short(two.security.fingerprint) in caplog.text
            assert short(stranger.security.fingerprint) in caplog.text
            assert caplog.text.count("a stream from") == 1, "said once"
            assert "postroom rebind-node 2" in caplog.text
            assert await stream(two, one) == "open"
            assert one.frames == [(2, b"forged")]

    run(main())


def test_another_key_is_not_talked_to_as_a_node(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The record says "node 2 is there": whoever it was that changed it, the key is not there."""

    async def main() -> None:
        async with talking(authority) as (one, two, stranger):
            nodes = nodes_of(one, two)
            moved = msgspec.structs.replace(nodes.nodes[1], address=stranger.address)
            stranger.talk(nodes)
            said: list[object] = []
            stranger.peers.sender_of = said.append  # type: ignore[assignment, method-assign, return-value]
            one.talk(msgspec.structs.replace(nodes, nodes=(nodes.nodes[0], moved)))
            one.peers.send(2, b"secret")
            await until(lambda: one.peers.connection_error(2))
            assert "node 2 has the key" in one.peers.connection_error(2)
            assert not one.peers.connected(2)
            assert said == []
            two.talk(nodes)
            one.peers.follow(nodes)
            await until(lambda: one.peers.connected(2))

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "is not who it should be" in caplog.text


def test_a_node_met_at_another_address_keeps_its_own(authority: Authority) -> None:
    async def main() -> None:
        async with talking(authority) as (one, two, stranger):
            nodes = nodes_of(one, two)
            one.talk(nodes)
            two.talk(nodes)
            await until(lambda: one.peers.connected(2))
            one.peers.met(store(2), stranger.address, stranger.security.fingerprint)
            assert one.peers._links[2].address == two.address

    run(main())


def test_a_key_that_is_no_longer_the_nodes_loses_its_streams(authority: Authority) -> None:
    async def main() -> None:
        async with talking(authority) as (one, two, stranger):
            nodes = nodes_of(one, two)
            one.talk(nodes)
            two.talk(nodes)
            await until(lambda: one.peers.connected(2) and one.peers.hears_others)
            new = msgspec.structs.replace(nodes.nodes[1], fingerprint=stranger.security.fingerprint)
            one.peers.follow(msgspec.structs.replace(nodes, nodes=(nodes.nodes[0], new)))
            await until(lambda: not one.peers.connected(2) and not one.peers.hears_others)
            assert await stream(two, one) == DENIED

    run(main())


def test_a_node_that_knows_the_state_is_let_in_while_nobody_leads(authority: Authority) -> None:
    """A node whose record is behind may need it to elect a leader."""

    async def main() -> None:
        async with talking(authority) as (one, two, renewed):
            one.talk(nodes_of(one, two))
            one.peers.secret = lambda: SECRET
            said = Introduction(1, CLUSTER, 2, store(2), renewed.address, 1)
            key = renewed.security.fingerprint
            proof = proof_of(SECRET, said, key)
            assert await stream(renewed, one, proof=proof) == DENIED, "a leader is heard"
            one.peers.has_leader = lambda: False
            assert await stream(renewed, one) == DENIED
            assert await stream(renewed, one, proof=proof_of(b"other", said, key)) == DENIED
            assert await stream(two, one, address=two.address) == "open"
            assert await stream(renewed, one, proof=proof_of(SECRET, said, bytes(32))) == DENIED
            elsewhere = msgspec.structs.replace(said, receiver=3)
            assert await stream(renewed, one, proof=proof_of(SECRET, elsewhere, key)) == DENIED
            one.peers.has_leader = lambda: False
            assert one.frames == [(2, b"forged")]
            await until(lambda: not one.peers.hears_others)
            assert await stream(renewed, one, proof=proof) == "open"
            assert one.peers.fault_of_key(2, key) is None, "nor is it called in vain"

    run(main())


def test_an_unknown_id_needs_the_secret_too(authority: Authority) -> None:
    async def main() -> None:
        async with talking(authority) as (one, two, stranger):
            one.talk(nodes_of(one, two))
            one.peers.secret = lambda: SECRET
            one.peers.has_leader = lambda: False
            as_100 = {"sender": 100, "store_id": store(7)}
            assert await stream(stranger, one, **as_100) == UNAVAILABLE
            assert one.frames == []
            said = Introduction(1, CLUSTER, 100, store(7), stranger.address, 1)
            proof = proof_of(SECRET, said, stranger.security.fingerprint)
            assert await stream(stranger, one, **as_100, proof=proof) == "open"

    run(main())


def test_a_stranger_at_the_address_of_a_node_does_not_say_who_was_removed(
    authority: Authority,
) -> None:
    async def main() -> None:
        async with talking(authority) as (one, two, stranger):
            nodes = nodes_of(one, two)
            engine = MemoryEngine()
            engine.write(formation.become_writes(1, nodes), sync=True)
            without = msgspec.structs.replace(nodes, nodes=nodes.nodes[1:])
            hello = formation.SelfDescription(store(2), (), without)
            two.service._hello = lambda: hello
            stranger.service._hello = lambda: hello
            own = Joining(engine, one.address, (), one.security, Random(1))
            own.record, own.store_id = read_store(engine), store(1)

            async def look(known: Nodes) -> None:
                await own.look_around(lambda: known, lambda: True, lambda *_: None)

            async def look_where(address: str) -> None:
                moved = msgspec.structs.replace(nodes.nodes[1], address=address)
                known = msgspec.structs.replace(nodes, nodes=(nodes.nodes[0], moved))
                engine.write(formation.become_writes(1, known), sync=True)
                await look(known)

            await look_where(stranger.address)
            with pytest.raises(Invalid, match="has been removed"):
                await look_where(two.address)

    run(main())
