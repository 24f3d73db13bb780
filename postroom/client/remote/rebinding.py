"""Gives a node of a cluster another key, for which its certificate is renewed."""

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
    """From now on a node is who has the new key; its streams with the old one end.

    Args:
        addresses: of some nodes.
        request: which node, and the fingerprint of its new key.
        tls, token: as :func:`postroom.connect` takes them; of an administrator.
        randomness: for the client's id.
        timeout_seconds: how long that may take.

    Raises:
        Invalid: there is no such node.
        AccessDenied: this is no administrator.
    """
    sender = AsyncioSender(addresses, tls, token, randomness, timeout_seconds)
    try:
        nodes: Nodes = await sender.send(request)
        return nodes
    finally:
        await sender.close()
