"""A new key for a node of a cluster, for which its certificate is renewed."""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Sequence

from postroom.client.remote.connection import TLS
from postroom.client.remote.sender import AsyncioSender
from postroom.ranges.nodes import Nodes, RebindNode


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
