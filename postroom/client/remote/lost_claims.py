"""The claims on queues whose answers are lost: a message must not be held without a caller.

::

    claim, number 7 ──▶ leased ── answer ──✗ the stream broke
         │ a caller waits yet ──▶ the same claim *again* ──▶ what it holds, or else as any claim
         └ none does ───────────▶ again, for nothing more ─▶ what it holds ─▶ given back, uncounted

The number of a claim is stored with its leases, so this works after a change of leader.
"""

from __future__ import annotations

import math

import msgspec

from postroom.client.remote.calls import RemoteCall, UpkeepCall
from postroom.messaging.queues.requests import ClaimQueue
from postroom.ranges.requests import CommitTransaction

LASTING = (ClaimQueue, CommitTransaction)
"""The types of the router's own requests that are sent until they are answered.

These find messages that are held without a caller, and give them back.
"""


def number(call: RemoteCall) -> None:
    """Give a claim the number of its call."""
    call.request = msgspec.structs.replace(call.request, number=call.number)


def ask_again(call: RemoteCall) -> None:
    """Mark a claim that a node may have answered before."""
    call.request = msgspec.structs.replace(call.request, again=True)


def left_behind(call: RemoteCall) -> UpkeepCall | None:
    """Return the request that replaces a lost claim without a caller; ``None``: none is needed."""
    request = call.request
    if type(request) is not ClaimQueue or not call.was_sent or type(call) is UpkeepCall:
        return None
    if request.transaction_id is not None:
        return None  # its messages are freed with its transaction
    left = UpkeepCall(msgspec.structs.replace(request, messages_max=0, wait=False, again=True))
    left.number, left.deadline, left.was_sent = call.number, math.inf, True
    return left
