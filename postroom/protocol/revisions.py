"""The revision of requests that a node understands, which it tells in its Welcome.

Requests are added over time, and clients and nodes are upgraded one after the other. A node that
is asked an unknown request can only end the stream: it cannot even read the frame. A client
therefore sends no node a request from after the node's revision, and tells its caller that.

A new request has the next revision as its ``since`` (:mod:`postroom.ranges.contract`). All that are
added before a release have the same one.
"""

from __future__ import annotations

from typing import Final

from postroom.errors import VersionMismatch
from postroom.protocol.failures import Failure
from postroom.protocol.requests import REQUESTS, name_of
from postroom.ranges.contract import Request

REVISION: Final = max(kind.since for kind in REQUESTS.all)
"""The revision of this version: that of its newest request."""


def refusal(request: Request, revision: int) -> Failure | None:
    """Return the failure of a request that a node of this revision does not know, or ``None``."""
    for each in request.contained():
        if each.since > revision:
            return (
                VersionMismatch.__name__,
                (
                    f"the node that leads runs an earlier version of Postroom, which does not know "
                    f"{name_of(type(each))!r}; nothing was changed: upgrade all nodes, then try "
                    "again"
                ),
                None,
            )
    return None
