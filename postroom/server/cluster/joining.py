"""The joining of a cluster: the identity of this disk, its node, and the other nodes.

This is the shell of :mod:`.formation`: it reads and writes the disk, asks the others, and logs the
outcome. :class:`KeyBinding` tells the cluster the keys of its nodes.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from postroom.errors import Error, Invalid
from postroom.kv.engine import Engine, EngineFailed, WriteSet
from postroom.log_once import LogChanges, LogOnce, shown
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.nodes import SECRET_BYTES, STORE_ID_BYTES, BindKey, Nodes, short, wrong_key
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster import formation
from postroom.server.cluster.formation import (
    Become,
    FoundCluster,
    Join,
    SelfDescription,
    WaitDecision,
)
from postroom.server.cluster.nodes_service import JoinRequest, Questions
from postroom.server.cluster.peers import Peers
from postroom.server.cluster.security import Security
from postroom.server.opening import StoreRecord, check_empty, read_store, stopped_by

ASK_SECONDS: Final = 0.2
ASK_AGAIN_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Joining:
    """The joining of one disk; see the module.

    Args:
        engine: the disk.
        address: the address at which this node is reached.
        first_addresses: the list that it was started with.
        security: the proofs that it shows to others.
        randomness: for ids and pauses.
        settings: the record of settings of a cluster that it founds; ``None``: it has none.

    Attributes:
        record: the identity of this node; ``None``: it is no node yet.
        store_id: the disk's.
    """

    def __init__(
        self,
        engine: Engine,
        address: str,
        first_addresses: Iterable[str],
        security: Security,
        randomness: random.Random,
        settings: WriteSet | None = None,
    ) -> None:
        self.record: StoreRecord | None = None
        self.store_id = b""
        self._engine = engine
        self._address = address
        self._first_addresses = tuple(sorted(set(first_addresses)))
        self._security = security
        self._random = randomness
        self._settings = settings

    async def open(self) -> None:
        """Read the disk's identity; an embedded store becomes the first node of a cluster.

        Raises:
            Error: it is no store, or cannot become a node.
        """
        self.record = read_store(self._engine)
        identity = formation.read_identity(self._engine)
        if identity is not None:
            self.store_id = identity.store_id
            self._check_recovered()
            return
        self.store_id = self._random.randbytes(STORE_ID_BYTES)
        if self.record is None:
            check_empty(self._engine)
            self._write(formation.identity_writes(self.store_id))
        else:
            await self._check_adoption()
            self._write(
                formation.adopt_writes(
                    self.record, self._address, self.store_id,
                    self._security.fingerprint, self._new_secret(),
                )
            )  # fmt: skip
            _log.info("the embedded store is now the first node of a cluster")

    def _check_recovered(self) -> None:
        record, known = self.record, self.known_nodes()
        if record is not None and known is not None and known.cluster_id != record.cluster_id:
            raise Invalid(
                "a recovery of this folder was interrupted; nothing was changed: run 'postroom "
                "recover --force' again"
            )

    async def _check_adoption(self) -> None:
        heard, _ = await self._self_descriptions(self._first_addresses)
        for address, hello in heard.items():
            if hello.nodes is not None:
                raise Invalid(
                    f"the folder has a store of its own, and {address} is in a cluster already: "
                    "two stores cannot be made one; nothing was changed: join with an empty folder"
                )

    def hello(self, nodes: Nodes | None) -> SelfDescription:
        """Return this node's description of itself.

        Args:
            nodes: the cluster, if the node knows it better than the disk.
        """
        known = None if self.record is None else nodes or self.known_nodes()
        return SelfDescription(self.store_id, self._first_addresses, known)

    def known_nodes(self) -> Nodes | None:
        """Return the cluster, as the disk knows it."""
        return formation.known_nodes(self._engine)

    # --- a fresh disk

    async def find(self) -> None:
        """Ask until this disk is a node.

        Raises:
            Error: it cannot become one.
        """
        questions, said = Questions(self._security), LogChanges(asyncio.get_running_loop().time)
        while self.record is None:
            reason = await self._step(questions)
            if said.is_news(reason) or self.record is not None:
                _log.info("%s", shown(reason, 2000))
            if self.record is None:
                await asyncio.sleep(ASK_SECONDS * self._random.uniform(0.5, 1.0))

    async def _step(self, questions: Questions) -> str:
        """Ask, decide and act, and return the outcome, for people."""
        address, first = self._address, self._first_addresses
        heard = await questions.hello({*first, address})
        own = heard.pop(address, None)
        if own is not None and own.store_id != self.store_id:
            raise Invalid(
                f"another node is at {address}; nothing was changed: correct --listen or "
                "--advertise, which is where others reach this node"
            )
        cluster_id = self._random.randbytes(STORE_ID_BYTES)
        decision = formation.decide(
            address, self.store_id, first, heard, cluster_id, questions.connection_errors
        )
        match decision:
            case WaitDecision():
                return decision.reason
            case FoundCluster():
                self._found(decision.nodes, questions.fingerprints)
                reason = f"founded a cluster of {len(decision.nodes.nodes)}"
            case Become():
                self._become(decision.node_id, decision.nodes)
                reason = f"this is node {decision.node_id}"
            case Join():
                application = JoinRequest(self.store_id, address, token=self._security.admin_token)
                admission = await questions.admit(decision.addresses, application)
                if admission is None:
                    return "waiting for a leader to let this node in"
                self._become(admission.node_id, admission.nodes)
                reason = f"joined as node {admission.node_id}"
            case _:
                assert_never(decision)
        self.record = read_store(self._engine)
        return reason

    def _found(self, nodes: Nodes, fingerprints: Mapping[str, bytes]) -> None:
        shown = {**fingerprints, self._address: self._security.fingerprint}
        self._write(
            formation.found_writes(
                formation.with_keys(nodes, shown),
                self._new_secret(),
                self._settings,
            )
        )

    def _new_secret(self) -> bytes:
        return b"" if self._security.insecure else self._random.randbytes(SECRET_BYTES)

    def _become(self, node_id: int, nodes: Nodes) -> None:
        self._write(formation.become_writes(node_id, nodes))

    def _write(self, writes: WriteSet) -> None:
        try:
            self._engine.write(writes, sync=True)
        except EngineFailed as failure:
            raise stopped_by(failure) from failure

    # --- a node that was there before

    async def tell_address(self, nodes: Callable[[], Nodes | None]) -> None:
        """Tell the others this node's new address, until one has heard it.

        Args:
            nodes: returns the cluster, as the node knows it.

        Raises:
            Invalid: it has been removed from the cluster.
        """
        while not await self._tell_address_once(nodes()):
            await asyncio.sleep(ASK_SECONDS)

    async def _tell_address_once(self, known: Nodes | None) -> bool:
        assert self.record is not None
        application = JoinRequest(self.store_id, self._address, self.record.node_id)
        told = await self._tell(application, known)
        if told:
            _log.info("the others know that this node is at %s now", self._address)
        return told

    async def _tell(self, application: JoinRequest, known: Nodes | None) -> bool:
        others = [] if known is None else [node.address for node in known.nodes]
        questions = Questions(self._security, self._fault_of_key)
        return await questions.admit([self._address, *others], application) is not None

    async def tell_next_key(self, fingerprint: bytes, known: Nodes | None) -> bool:
        """Tell the others the next key of this node, and return whether one has heard it.

        Args:
            fingerprint: the fingerprint of that key.
            known: the cluster, as the node knows it.

        Raises:
            Invalid: they do not take it.
        """
        assert self.record is not None
        return await self._tell(
            JoinRequest(
                self.store_id, self._address, self.record.node_id, next_fingerprint=fingerprint
            ),
            known,
        )

    async def _try_to_tell_address(self, known: Nodes | None) -> bool:
        try:
            return await self._tell_address_once(known)
        except Invalid as refused:
            _log.warning("the others do not take this node's address: %s", shown(refused))
            return True

    async def look_around(
        self,
        nodes: Callable[[], Nodes | None],
        settled: Callable[[], bool],
        met: Callable[[bytes, str, bytes], None],
    ) -> None:
        """Ask the others who they are, until this node is in touch with them.

        Args:
            nodes: returns the cluster, as the node knows it.
            settled: returns whether it is in touch.
            met: told a store's id, its address, and the fingerprint of its key.

        Raises:
            Invalid: this node has been removed from the cluster. A removed node is sent nothing any
                more, and would not learn it otherwise.
        """
        warned: set[str] = set()
        told = False
        while True:
            known, sought_elsewhere = nodes(), False
            others = () if known is None else tuple(node.address for node in known.nodes)
            heard, keys = await self._self_descriptions({*self._first_addresses, *others})
            for address, hello in heard.items():
                if self._was_removed(address, hello, warned):
                    raise self._removed()
                sought_elsewhere = sought_elsewhere or self._is_sought_elsewhere(hello)
                met(hello.store_id, address, keys.get(address, b""))
            if sought_elsewhere and not told:
                told = await self._try_to_tell_address(nodes())
            elif settled():
                return
            await asyncio.sleep(ASK_AGAIN_SECONDS * self._random.uniform(0.5, 1.0))

    def _was_removed(self, address: str, hello: SelfDescription, warned: set[str]) -> bool:
        """Return whether the answer says that this node was removed.

        A retired node is not removed: its vote may be needed to remove it. A node of another
        cluster is logged once.
        """
        record, theirs = self.record, hello.nodes
        if record is None or theirs is None:
            return False
        if theirs.cluster_id == record.cluster_id:
            return record.node_id < theirs.next_node_id and theirs.by_id(record.node_id) is None
        if address not in warned:
            warned.add(address)
            _log.error(
                "the node at %s is in another cluster than this one (%s, not %s): they do not mix; "
                "correct --join, or empty the folder of the one that is in the wrong one",
                shown(address), theirs.cluster_id.hex(), record.cluster_id.hex(),
            )  # fmt: skip
        return False

    def _is_sought_elsewhere(self, hello: SelfDescription) -> bool:
        """Return whether others look for this node at a wrong address, unheard by it."""
        record, theirs = self.record, hello.nodes
        if record is None or theirs is None or theirs.cluster_id != record.cluster_id:
            return False
        mine = theirs.by_store(self.store_id)
        return mine is not None and mine.address != self._address

    def _removed(self) -> Invalid:
        assert self.record is not None
        return Invalid(
            f"node {self.record.node_id} has been removed from the cluster for good; nothing was "
            "changed: empty its data folder to let it join as a new node"
        )

    async def _self_descriptions(
        self, addresses: Iterable[str]
    ) -> tuple[dict[str, SelfDescription], dict[str, bytes]]:
        """Return the descriptions of others, and the fingerprints of their keys."""
        questions = Questions(self._security, self._fault_of_key)
        heard = await questions.hello(set(addresses) - {self._address})
        return heard, questions.fingerprints

    def _fault_of_key(self, address: str, fingerprint: bytes) -> str | None:
        """Return why a key shown at a node's address is not trusted, or ``None``.

        Another one could say that this node was removed. A node at an address of --join alone is
        trusted: the operator has written that address.
        """
        known = None if self.record is None else self.known_nodes()
        nodes = () if known is None else known.nodes
        if any(node.fingerprint and node.may_show(fingerprint) for node in nodes):
            return None
        there = next((node for node in nodes if node.address == address), None)
        if there is None or there.may_show(fingerprint):
            return None
        return wrong_key(there, fingerprint)


async def store_at(security: Security, address: str) -> tuple[bytes, bytes] | None:
    """Return the id of the store at ``address``, and its key's fingerprint.

    ``None``: no node answers there.
    """
    questions = Questions(security)
    heard = await questions.hello([address])
    if address not in heard:
        return None
    return heard[address].store_id, questions.fingerprints.get(address, b"")


LOOK_SECONDS: Final = 0.5
BIND_SECONDS: Final = 2.0


class KeyBinding:
    """The binding of keys on one node.

    ::

        leader     a node that was called at its address has shown a key ─▶ BindKey, if none is
                   bound, or if it is the next one that the node has announced
        any node   its certificate's file has another key now ─▶ tells the leader, with the old key

    To renew a key, one writes the new files, waits for the line in the log, and starts the node
    again. Between the two, both count.

    A key is bound by contact only if it was shown at the node's recorded address when it was
    called: a caller could claim to be any node.

    Args:
        driver: the node's.
        peers: the connected nodes, with their keys.
        joining: tells the others.
        security: the key of this node, and its next one.
        randomness: for the cluster's secret, if it has none.
    """

    def __init__(
        self,
        driver: AsyncioDriver,
        peers: Peers,
        joining: Joining,
        security: Security,
        randomness: random.Random,
    ) -> None:
        self._driver = driver
        self._peers = peers
        self._joining = joining
        self._security = security
        self._random = randomness
        self._said = LogOnce()
        self._announced = security.fingerprint

    async def run(self) -> None:
        """Bind and announce keys, for ever."""
        _log.info("the key of this node is sha256:%s", self._security.fingerprint.hex())
        while True:
            nodes, node = self._driver.node.nodes, self._driver.node
            if nodes is not None:
                if node.leader() == node.node_id:
                    await self._bind(nodes)
                await self._announce(nodes)
            await asyncio.sleep(LOOK_SECONDS)

    # --- the keys of all nodes, on the leader

    async def _bind(self, nodes: Nodes) -> None:
        due = [(node.node_id, self._peers.key_of(node)) for node in nodes.nodes]
        for node_id, fingerprint in due:
            node = nodes.by_id(node_id)
            assert node is not None
            is_next = bool(node.next_fingerprint) and fingerprint == node.next_fingerprint
            lacks_secret = node_id == self._driver.node.node_id and not self._peers.secret()
            if fingerprint and (is_next or not node.fingerprint or lacks_secret):
                await self._bind_one(node_id, fingerprint)

    async def _bind_one(self, node_id: int, fingerprint: bytes) -> None:
        secret = self._random.randbytes(SECRET_BYTES)
        try:
            await self._driver.send(BindKey(node_id, fingerprint, secret), BIND_SECONDS)
        except (Error, NotLeaseholder) as error:
            _log.debug("the key of node %d is not bound yet: %s", node_id, shown(error))
        else:
            _log.info("node %d has the key %s", node_id, short(fingerprint))

    # --- the key of this node

    async def _announce(self, nodes: Nodes) -> None:
        """Announce the key of the next start, if the file has another one than this process."""
        following, mine = self._security.next_fingerprint, nodes.by_id(self._driver.node.node_id)
        if mine is None or mine.fingerprint != self._security.fingerprint:
            return
        wanted = b"" if following == mine.fingerprint else following
        if mine.next_fingerprint != wanted:
            try:
                await self._joining.tell_next_key(following, nodes)
            except Error as error:
                self._said.log(
                    _log, following, asyncio.get_running_loop().time(),
                    "the next key of this node, %s, is not taken: %s", short(following), error,
                )  # fmt: skip
        elif wanted and following != self._announced:
            self._announced = following
            _log.info(
                "the others know the key %s, which the file of this node's certificate has now: "
                "start the node again", short(following),
            )  # fmt: skip
