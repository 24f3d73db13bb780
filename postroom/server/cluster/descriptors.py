"""The file descriptors: as many as the system gives, and some of them kept for storage."""

from __future__ import annotations

import logging
import resource

from postroom.limits import CONNECTIONS_MAX, DESCRIPTORS_RESERVED

_log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise this process's limit of files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # some systems promise more than they give
            _log.info("the limit of open files stays at %d: %s", soft, error)
    return CONNECTIONS_MAX + DESCRIPTORS_RESERVED if soft == resource.RLIM_INFINITY else soft


def for_connections(limit: int) -> int:
    """Return how many of ``limit`` connections may take.

    The storage library keeps a fifth of them for its tables and opens others for a moment. The
    reserve on top is for its logs, this node's own calls, the event loop and standard streams.
    """
    return max(limit // 4, min(CONNECTIONS_MAX, limit - limit // 5 - DESCRIPTORS_RESERVED))
