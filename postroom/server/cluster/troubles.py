"""Why another node does not answer, in words that say what to look at.

gRPC tells it in its own terms, which differ from attempt to attempt.
"""

from __future__ import annotations

from typing import Final

import grpc
from grpc import aio

_WORDS: Final = (
    ("connection refused", "nobody listens there"),
    ("wrong_version_number", "it speaks no TLS: it seems to be started with --insecure"),
    ("hostname verification", "its certificate does not name this address"),
    ("certificate_verify_failed", "its certificate is none of this node's authority, or expired"),
    ("handshake", "no TLS connection"),
    ("closed", "it hangs up: it may ask for a certificate of its authority"),
    ("reset", "it hangs up: it may ask for a certificate of its authority"),
)
"""What gRPC says, in small letters, and what it means; the first that fits."""


def trouble(error: aio.AioRpcError) -> str:
    """What kept another node from answering."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer"
    said = str(error.details() or "no answer")
    return next((words for part, words in _WORDS if part in said.lower()), said)
