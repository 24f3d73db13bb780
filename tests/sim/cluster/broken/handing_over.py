"""Mutations of splits, and of what ranges hand over to each other."""

from __future__ import annotations

from typing import Any

from postroom.kv import keys
from postroom.messaging.halves import MessagingHalves
from postroom.messaging.handover import marks, outgoing
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.handover.sending import SendingService
from postroom.raft.journal import Journal
from postroom.ranges.bounds import Bounds
from postroom.server.replicas import Replicas
from tests.sim.cluster.broken import Patch


def no_marks() -> Patch:
    """Remember nothing of what was taken."""
    return marks, "raised", lambda known, start, end, position: known


def batch_marks_the_whole_range() -> Patch:
    """Mark all keys with the position of a batch for some of them."""
    raised = marks.raised

    def everywhere(known: Any, start: bytes, end: bytes | None, position: bytes) -> Any:
        del start, end
        return raised(known, b"", None, position)

    return marks, "raised", everywhere


def batch_leaves_out_the_first() -> Patch:
    """Send a batch that does not begin with the oldest entry."""
    whole = SendingService._batch

    def without_the_first(self: SendingService, destination: Any) -> HandOver | None:
        batch = whole(self, destination)
        if batch is None or len(batch.messages) < 2:
            return batch
        return HandOver(batch.channel, batch.start, batch.end, batch.messages[1:])

    return SendingService, "_batch", without_the_first


def positions_step_back() -> Patch:
    """Give every second entry a position of three seconds ago."""

    def earlier(stamp: bytes, id_: bytes) -> bytes:
        when = int.from_bytes(stamp, "big") - (id_[-1] % 2) * (3000 << 16)
        return keys.u64(when) + id_

    return outgoing, "position_of", earlier


def entries_leave_when_sent() -> Patch:
    """Delete what was sent, whether it was taken or not."""
    taken = SendingService._take_answers

    def all_of_it(self: SendingService) -> dict[bool, list[bytes]]:
        found = taken(self)
        for each in self._destinations.values():
            if each.under_way is not None and not each.channel.has_updates:
                found[False] += [at for at, _ in each.under_way.messages]
        return found

    return SendingService, "_take_answers", all_of_it


def ranges_answer_for_any_key() -> Patch:
    """Let a range read and write keys that belong to others."""
    return Bounds, "refusal", lambda self, request: None


def snapshots_overlap() -> Patch:
    """Take a snapshot of a range whose keys belong to another range here."""
    return Replicas, "may_take", lambda self, range_id, descriptor: True


def empty_replicas_store_no_vote() -> Patch:
    """Let a replica that holds nothing forget its vote."""
    may_go = property(lambda self: self.is_provisional and self.holds_nothing)
    return Journal, "promises_nothing", may_go


def marks_are_forgotten_at_a_split() -> Patch:
    """Let a right half know nothing of what was taken for its keys."""
    return MessagingHalves, "_divide_marks", lambda self, ctx, right: None
