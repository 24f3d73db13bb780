"""Which keys the nodes have: what this node writes into the record, and what it tells of its own.

::

    leader     a node that was called at its address has shown a key ─▶ BindKey, if none is bound,
               or if it is the next one that the node has announced
    any node   its certificate's file has another key now ─▶ tells the leader, with the old key

So a folder of before gets its keys at the next contact; and a key is renewed by writing the new
files, waiting for the line in the log, and starting the node again. Between the two, both count.

What is bound by contact is what was shown where the record says that the node is, when it was
called: who only calls could say that he is anybody.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.errors import Error
from postroom.log_once import LogOnce, shown
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.nodes import SECRET_BYTES, BindKey, Nodes, short
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster.joining import Joining
from postroom.server.cluster.peers import Peers
from postroom.server.cluster.security import Security

LOOK_SECONDS: Final = 0.5
BIND_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class KeyBinding:
    """See the module.

    Args:
        driver: of the node.
        peers: who is connected, and with which key.
        joining: tells the others.
        security: which key this node has, and will have.
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
        """For ever."""
        _log.info("the key of this node is sha256:%s", self._security.fingerprint.hex())
        while True:
            nodes, node = self._driver.node.nodes, self._driver.node
            if nodes is not None:
                if node.leader() == node.node_id:
                    await self._bind(nodes)
                await self._announce(nodes)
            await asyncio.sleep(LOOK_SECONDS)

    # --- of all nodes, where this one leads

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

    # --- of this one

    async def _announce(self, nodes: Nodes) -> None:
        """The file has another key than this process: that of the next start."""
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
