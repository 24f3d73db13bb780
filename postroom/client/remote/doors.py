"""Which protocol is spoken at an address: native streams, or gRPC alone, as the first release did.

Native streams are tried first. Where they are not spoken gRPC is, and that is remembered for a
while, so that two attempts are not made each time; not for ever, for nodes are upgraded.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_SECONDS: Final = 30.0


class Doors:
    """What is remembered."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._grpc_until: dict[str, float] = {}

    def is_native(self, address: str, now: float) -> bool:
        """Whether native streams are to be tried at ``address``."""
        return self._grpc_until.get(address, now) <= now

    def speaks_grpc_only(self, address: str, now: float) -> None:
        """They were tried, in vain."""
        self._grpc_until[address] = now + REMEMBERED_SECONDS

    def forget(self, address: str) -> None:
        """What is there ended its stream: it may come back as another version."""
        self._grpc_until.pop(address, None)
