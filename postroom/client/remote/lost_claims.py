"""Claims on queues whose answers are lost: nobody may hold a message without knowing it.

::

    claim, number 7 ──▶ leased ── answer ──✗ the stream broke
         │ somebody waits yet ──▶ the same claim *again* ──▶ what it holds, or else as any claim
         └ nobody does ─────────▶ again, for nothing more ─▶ what it holds ─▶ given back, uncounted

The number of a claim is stored with its leases, so this holds over a change of leader.
"""

from __future__ import annotations

import math

import msgspec

from postroom.client.remote.calls import RemoteCall, UpkeepCall
from postroom.messaging.queues.requests import ClaimQueue
from postroom.ranges.requests import CommitTransaction

LASTING = (ClaimQueue, CommitTransaction)
"""Of the router's own requests, those that are sent until they are answered: what is held without
knowing it, and what gives it back.
"""


def number(call: RemoteCall) -> None:
    """A claim is asked for."""
    call.request = msgspec.structs.replace(call.request, number=call.number)


def ask_again(call: RemoteCall) -> None:
    """A claim is sent that a node may have answered before."""
    call.request = msgspec.structs.replace(call.request, again=True)


def left_behind(call: RemoteCall) -> UpkeepCall | None:
    """What is to be asked because nobody waits for a call that was lost; ``None``: nothing."""
    request = call.request
    if type(request) is not ClaimQueue or not call.was_sent or type(call) is UpkeepCall:
        return None
    if request.transaction_id is not None:
        return None  # what it holds goes with its transaction
    left = UpkeepCall(msgspec.structs.replace(request, messages_max=0, wait=False, again=True))
    left.number, left.deadline, left.was_sent = call.number, math.inf, True
    return left
