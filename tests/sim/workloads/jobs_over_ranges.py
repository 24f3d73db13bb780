"""Jobs over several ranges: their ids, homes, and what else a transaction writes lie anywhere.

A producer gives the id, or has it made up in the right range or in a wrong one. A message goes home
after its commit, so those of several transactions may arrive in another order. A group is worked
off in the order in which its messages arrive.

The ranges have clocks of their own: a timestamp of one of them says nothing about another one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from postroom.client.queues.made_up import near_to
from postroom.client.queues.placing import homes
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.requests import Attempt, EnqueueInQueue
from postroom.ranges.requests import Committed
from tests.sim.workloads.jobs import LANES, Jobs, Schedules, commit, listed
from tests.sim.workloads.workload import Client

_replace = msgspec.structs.replace


class JobsOverRanges(Jobs):
    """A workload of queues of several ranges."""

    def _enqueued(self, client: Client, request: EnqueueInQueue) -> list[Any]:
        """Let some ids be made up, and send others twice, which makes no difference."""
        choose = client.random.choice
        if choose([True, False]):
            return [request] * choose([1, 1, 1, 2])
        near = choose([request.home, request.home, b"jobs", None])
        sender = client.db._sender
        id_ = near_to(sender, near, sender.next_id().hex().encode())
        key = id_ if request.key == request.id else request.key
        return [_replace(request, id=id_, key=key, is_unique=True)]

    async def _commit(self, client: Client, *writes: Any) -> Committed:
        anchor = client.random.choice([writes[0].anchor(), writes[-1].anchor(), b"jobs"])
        return await commit(client.db, *writes, anchor=anchor)

    async def _known(self, client: Client) -> Schedules:
        """Return the jobs that have arrived, and are not done."""
        found: Schedules = defaultdict(dict)
        for each in await listed(client.db, LANES, ""):
            found[each.group][each.payload] = each.first_scheduled
        return found

    async def _named(
        self, client: Client, queue: str, message: StoredQueueMessage
    ) -> list[Attempt]:
        """Look for the homes of some messages by their ids."""
        attempts = await super()._named(client, queue, message)
        if client.random.choice([True, False, False]):
            found = await homes(client.db._sender, queue, [message.id], message.kind)
            assert {each.home for each in found} <= {message.locator[0]}, f"{message}: {found}"
        return attempts
