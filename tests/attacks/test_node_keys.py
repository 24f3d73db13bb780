"""A certificate of the authority, with a valid host name, that is not the one of the node.

Everybody at the authority has such a certificate, and everybody who runs anything else on a machine
of the cluster. Its holder is no node: it cannot act as one, be called as one, or become one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.client.remote.nodes import rebind_node
from postroom.client.remote.tls_files import TLS
from postroom.errors import AccessDenied, Invalid
from postroom.kv.clock import SystemClock
from postroom.ranges.nodes import Admitted, NodeDescriptor, RebindNode, short
from postroom.server.cluster import formation, joining
from postroom.server.cluster.access import Tokens
from postroom.server.cluster.nodes_service import JoinRequest, Questions
from postroom.server.cluster.security import Certificates, Security
from postroom.server.cluster.serving import NodeSettings, ServedNode
from tests.cluster.places import Loopback
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import Talker, until

ADMIN, WRITER = "the-administrator", "a-writer"


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 90))


class Machines:
    """A host of nodes in this process, with certificates of one authority."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        loopback = Loopback()
        self.addresses = [loopback.address(number) for number in range(1, 7)]
        self.host = self.addresses[0].rpartition(":")[0]
        self.first = self.addresses[:3]
        self.tokens = folder / "tokens"
        self.tokens.write_text(f"admin {ADMIN}\n{WRITER}\n")
        self.certificates = [self.certificate() for _ in self.addresses]
        self.running: list[Machine] = []
        shown = self.authority.client()
        self.tls = TLS(shown.ca, shown.certificate, shown.key)

    def certificate(self) -> Certificates:
        return self.authority.node(self.host)

    def node(self, number: int, certificates: Certificates | None = None, **other: Any) -> Machine:
        return Machine(self, number, certificates, **other)

    async def start(self, *numbers: int, **other: Any) -> list[Machine]:
        nodes = [self.node(number, **other) for number in numbers]
        for each in nodes:
            await each.wait_ready()
        return nodes

    async def stop(self) -> None:
        for each in self.running:
            each.served.stop()
        await asyncio.gather(*(each.task for each in self.running), return_exceptions=True)

    def leader(self) -> Machine | None:
        """Return the machine that leads. There is none while another one is elected."""
        return next(
            (
                each for each in self.running
                if not each.task.done() and each.served.node.leader() == each.served.node.node_id
            ),
            None,
        )  # fmt: skip

    async def settled(self) -> Machine:
        """Return the leader, once one of the running nodes leads."""
        await until(self.leader)
        leader = self.leader()
        assert leader is not None
        return leader

    def keys(self) -> dict[int, bytes]:
        """Return the keys of the nodes that the leader knows."""
        leader = self.leader()
        return {} if leader is None else leader.keys()

    def shown(self, certificates: Certificates) -> bytes:
        return Security(certificates).fingerprint

    async def rebind(self, node_id: int, fingerprint: bytes, token: str = ADMIN) -> None:
        await rebind_node(
            self.first, RebindNode(node_id, fingerprint), self.tls, token, Random(1), 30.0
        )


class Machine:
    """A node in this process, and the task that runs it."""

    def __init__(
        self,
        machines: Machines,
        number: int,
        certificates: Certificates | None = None,
        tokens: str = "",
        *,
        insecure: bool = False,
    ) -> None:
        self.address = machines.addresses[number - 1]
        self.folder = machines.folder / f"node-{number}"
        shown = certificates or machines.certificates[number - 1]
        file = machines.tokens
        if tokens:
            file = machines.folder / f"tokens-{number}"
            file.write_text(tokens)
        security = Security(None) if insecure else Security(shown, Tokens(file))
        settings = NodeSettings(
            self.folder, self.address, self.address, tuple(machines.first), security,
            disk_reserve_bytes=0,
        )  # fmt: skip
        self.served = ServedNode(settings, SystemClock(), Random(f"{len(machines.running)}"))
        self.ready = asyncio.Event()
        self.task = asyncio.create_task(self.served.run(self.ready.set))
        machines.running.append(self)

    async def wait_ready(self) -> None:
        waiting = asyncio.create_task(self.ready.wait())
        async with asyncio.timeout(30):
            await asyncio.wait((waiting, self.task), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        self.served.stop()
        await self.task

    def keys(self) -> dict[int, bytes]:
        nodes = self.served.node.nodes
        return {} if nodes is None else {each.node_id: each.fingerprint for each in nodes.nodes}

    def descriptor(self, node_id: int) -> NodeDescriptor:
        nodes = self.served.node.nodes
        assert nodes is not None
        found = nodes.by_id(node_id)
        assert found is not None
        return found


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(joining, "ASK_AGAIN_SECONDS", 0.1)
    return Machines(tmp_path)


def on(machines: Machines, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        try:
            await story()
        finally:
            await machines.stop()

    run(main())


def test_founders_are_bound_from_the_first_moment(machines: Machines) -> None:
    async def story() -> None:
        nodes = await machines.start(1, 2, 3)
        wanted = {number: machines.shown(machines.certificates[number - 1]) for number in (1, 2, 3)}
        for each in nodes:
            assert each.keys() == wanted
        known = formation.known_nodes(nodes[0].served._engine)
        assert known is not None
        assert {each.node_id: each.fingerprint for each in known.nodes} == wanted

    on(machines, story)


def test_a_node_with_a_certificate_cannot_join_without_admission(machines: Machines) -> None:
    async def story() -> None:
        await machines.start(1, 2, 3)
        stranger = machines.node(4, machines.certificate(), tokens=f"{WRITER}\n")
        with pytest.raises(Invalid, match="an administrator must vouch for it"):
            await stranger.wait_ready()
        guessing = machines.node(5, machines.certificate(), tokens="admin guessed\n")
        with pytest.raises(Invalid, match="an administrator must vouch for it"):
            await guessing.wait_ready()
        assert set((await machines.settled()).keys()) == {1, 2, 3}
        wanted = machines.node(
            6
        )  # its file of tokens has an administrator's, as that of the others
        await wanted.wait_ready()
        await until(lambda: set(machines.keys()) == {1, 2, 3, 4})

    on(machines, story)


def test_a_lost_disk_is_replaced_by_who_has_the_key_of_its_node(machines: Machines) -> None:
    async def story() -> None:
        nodes = await machines.start(1, 2, 3)
        await nodes[2].stop()
        shutil.rmtree(nodes[2].folder)
        stranger = machines.node(3, machines.certificate(), tokens=f"{WRITER}\n")
        with pytest.raises(Invalid, match="an administrator must vouch for it"):
            await stranger.wait_ready()
        shutil.rmtree(nodes[2].folder)
        again = machines.node(3, tokens=f"{WRITER}\n")
        await again.wait_ready()
        assert again.served.node.node_id == 4
        await until(lambda: set(machines.keys()) == {1, 2, 4})

    on(machines, story)


def test_a_stranger_cannot_change_the_address_or_key_of_a_node(machines: Machines) -> None:
    async def story() -> None:
        await machines.start(1, 2, 3)
        leader = await machines.settled()
        before = leader.served.node.nodes
        victim = leader.descriptor(2)
        security = Security(machines.certificate())
        there = Talker(9, security)
        there.port = 0
        there.security = security
        questions = Questions(security)
        forged = [
            JoinRequest(victim.store_id, machines.addresses[4], 2),
            JoinRequest(victim.store_id, victim.address, 2, security.fingerprint),
            JoinRequest(victim.store_id, victim.address, 0, security.fingerprint, ADMIN),
        ]
        for application in forged:
            with contextlib.suppress(Invalid):
                assert await questions.admit(machines.first, application) is None
        assert leader.served.node.nodes == before

    on(machines, story)


async def answered(questions: Questions, machines: Machines, application: JoinRequest) -> Admitted:
    """Return the leader's answer, once there is a leader."""
    while (admitted := await questions.admit(machines.first, application)) is None:
        await asyncio.sleep(0.05)
    return admitted


def test_a_stranger_who_answers_where_it_says_moves_nobody(machines: Machines) -> None:
    async def story() -> None:
        await machines.start(1, 2, 3)
        leader = await machines.settled()
        victim, before = leader.descriptor(2), leader.served.node.nodes
        there = Talker(2, Security(machines.certificate()))
        await there.listen()
        host = there.address
        there.service._hello = lambda: formation.SelfDescription(victim.store_id, (), None)
        questions = Questions(there.security)
        try:
            forged = JoinRequest(victim.store_id, host, 2)
            with pytest.raises((Invalid, AccessDenied)):
                await answered(questions, machines, forged)
        finally:
            await there.close()
        assert leader.served.node.nodes == before

    machines.certificate = lambda: machines.authority.node("127.0.0.1")  # type: ignore[method-assign]
    on(machines, story)


def test_a_node_renews_its_key_while_it_has_the_old_one(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        nodes = await machines.start(1, 2, 3)
        old, new = machines.certificates[1], machines.certificate()
        key = machines.shown(new)
        shutil.copy(new.key, old.key)
        shutil.copy(new.certificate, old.certificate)
        await until(lambda: f"the others know the key {short(key)}" in caplog.text)

        def next_key() -> bytes | None:
            leader = machines.leader()
            return None if leader is None else leader.descriptor(2).next_fingerprint

        await until(lambda: next_key() == key)
        await nodes[1].stop()
        again = machines.node(2)
        await again.wait_ready()
        await until(lambda: machines.keys().get(2) == key and next_key() == b"")

    with caplog.at_level(logging.INFO):
        on(machines, story)


def test_a_key_nobody_was_told_of_is_refused_until_an_administrator_says_so(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        nodes = await machines.start(1, 2, 3)
        new = machines.certificate()
        key, old_key = machines.shown(new), nodes[1].descriptor(2).fingerprint
        await nodes[1].stop()
        stranger = machines.node(2, new)
        await until(lambda: "node 2 has the key" in caplog.text)
        assert not stranger.ready.is_set()
        settled = await machines.settled()
        await until(lambda: "key" in settled.served.node.link_error(2))  # status says why
        with pytest.raises(AccessDenied, match="role"):
            await machines.rebind(2, key, WRITER)
        assert (await machines.settled()).keys()[2] == old_key
        await machines.rebind(2, key)
        await stranger.wait_ready()
        await until(lambda: machines.keys().get(2) == key)

    with caplog.at_level(logging.INFO):
        on(machines, story)


def test_folders_of_before_are_bound_at_the_next_contact(machines: Machines) -> None:
    async def story() -> None:
        before = await machines.start(1, 2, 3, insecure=True)
        assert set(before[0].keys().values()) == {b""}
        await machines.stop()
        machines.running.clear()
        nodes = await machines.start(1, 2, 3)
        wanted = {each.served.node.node_id: each.served._security.fingerprint for each in nodes}
        for each in nodes:
            await until(lambda each=each: each.keys() == wanted)  # type: ignore[misc]
        await until(lambda: all(each.served._peers.secret() for each in nodes))  # type: ignore[union-attr]

    on(machines, story)


def test_all_keys_are_others_at_once(machines: Machines) -> None:
    """A node with the state of the cluster is let in, to elect a leader, which can be told."""

    async def story() -> None:
        await machines.start(1, 2, 3)
        await machines.stop()
        machines.running.clear()
        machines.certificates = [machines.certificate() for _ in machines.addresses]
        nodes = await machines.start(1, 2, 3)
        for each in nodes:
            await machines.rebind(each.served.node.node_id, each.served._security.fingerprint)
        await until(lambda: all(
            each.keys()[other.served.node.node_id] == other.served._security.fingerprint
            for each in nodes for other in nodes
        ))  # fmt: skip

    on(machines, story)
