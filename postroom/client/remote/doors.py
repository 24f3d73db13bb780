"""The protocol at an address: native streams, or gRPC alone, as the first release spoke it.

Native streams are tried first, then gRPC. The result is remembered for a while, so that each
connection does not take two attempts. It is not remembered for ever, for nodes are upgraded.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_SECONDS: Final = 30.0


class Doors:
    """A memory of the addresses that speak gRPC only."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._grpc_until: dict[str, float] = {}

    def is_native(self, address: str, now: float) -> bool:
        """Return whether to try native streams at ``address``."""
        return self._grpc_until.get(address, now) <= now

    def speaks_grpc_only(self, address: str, now: float) -> None:
        """Note that native streams were tried in vain."""
        self._grpc_until[address] = now + REMEMBERED_SECONDS

    def forget(self, address: str) -> None:
        """Forget an address whose stream has ended: the node may come back as another version."""
        self._grpc_until.pop(address, None)
