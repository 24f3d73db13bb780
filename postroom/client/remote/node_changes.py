"""The changes of a cluster's nodes by an administrator: the removal of one, a new key for one."""

from __future__ import annotations

import asyncio
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Sequence
from typing import Final

from postroom.client.remote.sender import AsyncioSender
from postroom.client.remote.tls_files import TLS
from postroom.errors import Retryable, Unavailable
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.nodes import Nodes, ReadNodes, RebindNode, RetireNode

LOOK_SECONDS: Final = 0.1


async def remove_node(
    addresses: Sequence[str],
    node_id: int,
    tls: TLS | None,
    token: str | None,
    randomness: random.Random,
    timeout_seconds: float,
) -> Nodes:
    """Retire a node for good; return the nodes that are left when it is out of the consensus group.

    Args:
        addresses: those of some nodes.
        node_id: the node to remove.
        tls, token: see :func:`postroom.connect`.
        randomness: for the client's id.
        timeout_seconds: how long it may take.

    Raises:
        Invalid: there is no such node, or it is the last one.
        Unavailable: the node is retired, but was still there after that time.
    """
    sender = AsyncioSender(addresses, tls, token, randomness, timeout_seconds)
    give_up_at = sender.monotonic() + timeout_seconds
    try:
        nodes: Nodes = await sender.send(RetireNode(node_id))
        while nodes.by_id(node_id) is not None:
            if sender.monotonic() > give_up_at:
                raise Unavailable(
                    f"node {node_id} is to be removed, but was still there after "
                    f"{timeout_seconds:g} s; the cluster goes on trying: look at 'postroom status'",
                    retry_after=1.0,
                )
            await asyncio.sleep(LOOK_SECONDS)
            try:
                nodes = await sender.send(ReadNodes(), max(give_up_at - sender.monotonic(), 0.1))
            except (Retryable, DeadlineExceeded):  # an election: the time is not over yet
                continue
        return nodes
    finally:
        await sender.close()


async def rebind_node(
    addresses: Sequence[str],
    request: RebindNode,
    tls: TLS | None,
    token: str | None,
    randomness: random.Random,
    timeout_seconds: float,
) -> Nodes:
    """Give a node a new key: it is now the node with this key; streams with the old one end.

    Args:
        addresses: those of some nodes.
        request: which node, and the fingerprint of its new key.
        tls, token: see :func:`postroom.connect`; those of an administrator.
        randomness: for the client's id.
        timeout_seconds: how long it may take.

    Raises:
        Invalid: there is no such node.
        AccessDenied: the caller is no administrator.
    """
    sender = AsyncioSender(addresses, tls, token, randomness, timeout_seconds)
    try:
        nodes: Nodes = await sender.send(request)
        return nodes
    finally:
        await sender.close()
