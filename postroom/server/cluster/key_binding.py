"""The binding of keys to nodes: the records by the leader, and the announcements of a node.

::

    leader     a node that was called at its address has shown a key ─▶ BindKey, if none is bound,
               or if it is the next one that the node has announced
    any node   its certificate's file has another key now ─▶ tells the leader, with the old key

To renew a key, one writes
the new files, waits for the line in the log, and starts the node again. Between the two, both
count.

A key is bound by contact only if it was shown at the node's recorded address when it was called: a
caller could claim to be any node.
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
    """The binding of keys on one node; see the module.

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
