"""The notification of a service manager, such as systemd: the node is ready, or it stops.

The manager names its socket in the environment, and takes one datagram for each state
(sd_notify(3)).
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = b"READY=1"
STOPPING: Final = b"STOPPING=1"

_log = logging.getLogger(__name__)


def notify(state: bytes) -> None:
    """Tell the service manager a state, if there is one; the node also goes on without it."""
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return
    if address.startswith("@"):  # a name that is in no folder
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)  # the node's loop does not wait for it
            manager.connect(address)
            manager.send(state)
    except OSError as error:
        _log.warning("the service manager cannot be told %s: %s", state.decode(), error)
