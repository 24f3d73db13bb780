"""The figures of a served node: clients, connections, certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroom.metrics.table import Point
from postroom.server.cluster.security import AUTHORITY_CERTIFICATE, NODE_CERTIFICATE
from postroom.server.cluster.serving import ServedNode

_CERTIFICATES: Final = {NODE_CERTIFICATE: "node", AUTHORITY_CERTIFICATE: "authority"}


def clients(served: ServedNode) -> Iterator[Point]:
    """Read the streams of clients, and the load that they cause."""
    yield Point("postroom_connections", len(served.connections))
    sessions = served.sessions
    if sessions is not None:
        load = sessions.admission
        yield Point("postroom_sessions", len(sessions))
        yield Point("postroom_requests_under_way", load.requests)
        yield Point("postroom_request_bytes", load.bytes)
        yield Point("postroom_unread_answer_bytes", load.unread_bytes)
        yield Point("postroom_requests_refused_total", load.refused, ("overload",))
        yield Point("postroom_requests_refused_total", load.denied, ("role",))


def certificates(served: ServedNode) -> Iterator[Point]:
    """Read when certificates expire."""
    for name, at in served.security.expiry.dates().items():
        label = (_CERTIFICATES[name],)
        yield Point("postroom_certificate_expiry_timestamp_seconds", at, label)
