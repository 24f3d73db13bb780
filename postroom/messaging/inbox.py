"""The inboxes of a range: delivery into them, reads of them, and reaps.

The index of inboxes (*mail*) has an entry for each inbox that contains something: the number of
messages, and the id of the first. It tells which keys have mail without a scan of the keys. It is
also the inbox's head cursor: reading starts at the first message, never at the tombstones of those
before it, also after a restart. A delayed message with an old id becomes the first one.

A reap takes the oldest messages that no other transaction holds. The claims are locks in the
leaseholder's memory. The commit checks that the messages are still there, and deletes exactly them.
Reaped messages stay readable to ``peek`` at a past timestamp until garbage collection: each reap
writes one record of what it took, beside the inbox.

A message that was tried in vain is taken out in the same way, and comes back to its place later
(:mod:`postroom.messaging.attempts`). It may hold up the inbox until then: the messages behind it
are in the inbox, and given to nobody (:mod:`postroom.messaging.inbox_index`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from postroom.errors import TransactionConflict, shorten
from postroom.kv import keys
from postroom.messaging import inbox_index
from postroom.messaging.claims import Arrival, Claims, FoundMessages
from postroom.messaging.inbox_index import InboxOrder, read_mail, write_mail
from postroom.messaging.inbox_reads import LAST_ID, Stored, first_free, trial_of
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    InboxIndexEntry,
    ReapedMessages,
    ReapMessages,
    ReapQueue,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation, MustWait, View, check_size
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Registry

Arrivals: TypeAlias = dict[bytes, Stored]
"""The messages that arrive, by recipient: their ids and stored forms."""

_encode = msgspec.msgpack.Encoder().encode
_mail = msgspec.msgpack.Decoder(InboxIndexEntry)
_mail_decode = _mail.decode
_taken = msgspec.msgpack.Decoder(Stored)


class Beginnings(Protocol):
    """The attempts that must be written down before their messages are given to a reap."""

    def given(self, request: ReapQueue) -> ReapedMessages | None:
        """Return the answer of a reap whose attempts are written down, or `None`.

        Raises:
            MustWait: they are being written down.
        """

    def before(self, request: ReapQueue, reaped: ReapedMessages) -> None:
        """Let a reap wait until its attempts are written down, if they must be.

        Raises:
            MustWait: they must be.
        """


class Inboxes:
    """The inboxes of one range.

    Args:
        wake: a function that answers the requests that wait for tokens.
        holders: the transactions that hold messages.
        bounds: the bounds of the range.

    Attributes:
        claims: the claims of transactions on messages.
        beginnings: the attempts to write down; set when the range is put together.
        held_up: notes the keys of inboxes that are held up, while a split is prepared; ``None``:
            none is.
    """

    beginnings: Beginnings

    def __init__(
        self,
        wake: Callable[[Iterable[object]], None],
        holders: Holders,
        bounds: Bounds,
    ) -> None:
        self._wake = wake
        self._holders = holders
        self.claims = self._claims = Claims()
        self._order = InboxOrder(holders, bounds)
        self.held_up: set[bytes] | None = None

    def register(self, registry: Registry) -> None:
        """Register the reads and the writes of inboxes."""
        registry.reads[ReapQueue] = self.reap_queue
        self._order.register(registry)
        registry.writes[ReapMessages] = self.reap_messages
        registry.sizes["claims"] = self._claims.__len__

    def forget(self) -> None:
        """Forget all claims, and the order of the inboxes."""
        self._order.drop()
        self._claims.clear()

    def bounds_changed(self) -> None:
        """Forget the order of the inboxes: some of them belong to another range."""
        self._order.drop()

    def release(self, transaction_id: bytes) -> list[object]:
        """Release the claims of a transaction; return the tokens of what may be free."""
        self._order.released(transaction_id)
        return self._claims.release(transaction_id)

    # --- delivering

    def deliver(self, ctx: Evaluation, arrivals: Arrivals) -> int:
        """Put messages into the inboxes of their recipients; return how many there were."""
        writes, delivered = ctx.writes, 0
        first: dict[bytes, bytes] = {}
        for key, messages in arrivals.items():
            prefix, index = keys.inbox_prefix(key), keys.mail_key(key)
            for id_, stored in messages:
                writes[prefix + id_] = stored
            number = len(messages)
            delivered += number
            first[key] = oldest = min(messages)[0]
            before = ctx.get(index)
            if before is not None:
                mail = _mail_decode(before)
                if mail.held:
                    writes[index] = _encode(_with_back(ctx, key, mail, messages, oldest))
                    continue
                number += mail.messages
                oldest = min(oldest, mail.oldest)
            writes[index] = _encode((number, oldest))
        self._claims.arriving(first)
        ctx.after.append(partial(self.arrived, first))
        return delivered

    def arrived(self, first: dict[bytes, bytes]) -> None:
        """Let those go on that wait for messages: these have arrived, as applied.

        Args:
            first: the least id of the messages that have arrived, by inbox.
        """
        self._claims.arrived(first)
        self._wake(map(Arrival, first))

    # --- reaping

    def reap_queue(self, view: View, request: ReapQueue) -> ReapedMessages:
        """Evaluate ``ReapQueue``: claim the oldest messages that no other transaction holds."""
        begun = self.beginnings.given(request)
        if begun is not None:
            return begun
        mail = read_mail(view, request.key)
        taken: Stored = []
        more, following = False, b""
        if mail is not None and mail.messages:
            taken, more, following = first_free(
                view, request, mail, self._claims.free(request.key, mail.oldest), self._claims.ahead
            )
        if not taken and request.wait:
            raise MustWait(Arrival(request.key))
        if taken:
            transaction_id, attempts_max = request.transaction_id, request.attempts_max
            self._claims.claim(request.key, transaction_id, taken, following, attempts_max)
            self._holders.hold(transaction_id, request.seconds_max)
            reaped = ReapedMessages(taken, more)
            self.beginnings.before(request, reaped)
            return reaped
        there = 0 if mail is None else mail.messages
        held = self._claims.held_by(request.transaction_id, request.key) if there else 0
        return ReapedMessages([], more, held if held == there else None)

    def reap_messages(
        self, ctx: Evaluation, request: ReapMessages
    ) -> Generator[None, None, None] | None:
        """Evaluate ``ReapMessages``: delete these messages, if all of them are still there.

        Raises:
            TransactionConflict: another transaction has reaped one of them; or it has tried one
                that was given to this one before, and given it back.
            TransactionTooLarge: together they are more than a transaction may reap.
        """
        key = request.key
        mail = read_mail(ctx, key)
        if mail is None:
            raise _reaped_by_another(key)
        found = self._claims.take_found(key, ctx.transaction_id, request.ids)
        if found is None:
            return self._read_and_reap(ctx, request, mail)
        self._reap_found(ctx, key, mail, found)
        return None

    def _reap_found(
        self, ctx: Evaluation, key: bytes, mail: InboxIndexEntry, found: FoundMessages
    ) -> None:
        """Reap messages that were found for this transaction, and that are still there.

        Nothing is read but the first message that will be left.
        """
        prefix, messages = keys.inbox_prefix(key), found.messages
        size = found.size_bytes + len(messages) * (len(prefix) + 2 * MESSAGE_ID_BYTES)
        ctx.grow(size)
        check_size(size, "reap fewer messages in a transaction")
        ctx.steps += len(messages)
        ctx.writes.update(dict.fromkeys([prefix + id_ for id_, _ in messages]))
        oldest, left = mail.oldest, mail.messages - len(messages)
        if left and oldest == messages[0][0] and found.is_gapless and found.following:
            oldest = found.following
        elif left and oldest == messages[0][0]:
            start = messages[-1][0] + b"\x00" if found.is_gapless else oldest
            following = ctx.iterate(prefix + start, prefix + LAST_ID)
            for raw, _ in following:
                oldest = raw[-MESSAGE_ID_BYTES:]
                break
        ctx.count("reaped", len(messages))
        self._taken_out(ctx, key, messages, InboxIndexEntry(left, oldest, mail.held))

    def _taken_out(
        self,
        ctx: Evaluation,
        key: bytes,
        found: Stored,
        left: InboxIndexEntry,
        *,
        consumed: bool = True,
    ) -> None:
        """Write the records of messages taken out.

        Other transactions that found them must read again.
        """
        write_mail(ctx, key, left)
        history = keys.reaped_key(key, ctx.stamp)
        if not consumed:
            history += b"".join(id_ for id_, _ in found[:1]) + keys.NOT_CONSUMED
        elif found and ctx.is_written(history):
            # Its transaction has taken out others, and may go on with single messages.
            history += found[0][0]
        if ctx.is_written(history):  # it has taken out this message too, which was back
            ctx.writes[history] = _encode(_taken.decode(ctx.get(history) or b"") + found)
        else:
            ctx.writes[history] = _encode(found)
            ctx.garbage.append(history)
        ids = [id_ for id_, _ in found]
        self._claims.gone(key, ids)
        # A message that was not consumed may come back.
        forget = self._claims.taken if consumed else self._claims.gone
        ctx.after.append(lambda: forget(key, ids))

    def _read_and_reap(
        self, ctx: Evaluation, request: ReapMessages, mail: InboxIndexEntry
    ) -> Generator[None, None, None]:
        """Read and reap messages, over as many turns as it takes."""
        found = yield from self._take_out(ctx, request.key, request.ids, mail, consumed=True)
        if request.tells_attempts:
            yield from self._check_attempts(ctx, request, found)
        ctx.count("reaped", len(found))

    def _check_attempts(
        self, ctx: Evaluation, request: ReapMessages, found: Stored
    ) -> Generator[None, None, None]:
        """Check that nobody else has tried one of the messages.

        The holder of a claim need not know of that: another transaction that had the message
        before, under another leaseholder, may have put it back meanwhile.

        Raises:
            TransactionConflict: somebody else has.
        """
        tried = dict(request.tried)
        for id_, stored in found:
            trial = trial_of(stored)
            ctx.steps += 1
            if (0 if trial is None else trial.attempts) != tried.get(id_, 0):
                raise tried_by_another(request.key)
            if ctx.is_used_up():
                yield

    def take_out(
        self, ctx: Evaluation, key: bytes, ids: Iterable[bytes]
    ) -> Generator[None, None, Stored]:
        """Take messages out of an inbox without reaping them, over as many turns as it takes.

        Returns:
            Their ids and stored forms.

        Raises:
            TransactionConflict: one of them is not there.
        """
        mail = read_mail(ctx, key)
        if mail is None:
            raise _reaped_by_another(key)
        found = yield from self._take_out(ctx, key, ids, mail, consumed=False)
        ctx.count("delivered", -len(found))
        return found

    def _take_out(
        self,
        ctx: Evaluation,
        key: bytes,
        ids: Iterable[bytes],
        mail: InboxIndexEntry,
        *,
        consumed: bool,
    ) -> Generator[None, None, Stored]:
        prefix = keys.inbox_prefix(key)
        oldest, found, size_before = mail.oldest, [], ctx.bytes
        for id_, message, is_found in self._find(ctx, key, ids, mail):
            if is_found:
                found.append((id_, message))
                ctx.writes[prefix + id_] = None
                ctx.grow(len(message) + len(prefix) + 2 * MESSAGE_ID_BYTES)
                check_size(ctx.bytes - size_before, "reap fewer messages in a transaction")
            else:
                oldest = id_
            ctx.steps += 1
            if ctx.is_used_up():
                yield
        left = InboxIndexEntry(mail.messages - len(found), oldest, mail.held)
        self._taken_out(ctx, key, found, left, consumed=consumed)
        return found

    def hold_up(self, ctx: Evaluation, key: bytes, waiting: Stored) -> None:
        """Let messages hold up an inbox; ``waiting`` has their ids, and where they wait now."""
        if self.held_up is not None:
            self.held_up.add(key)
        mail = read_mail(ctx, key) or InboxIndexEntry(0, b"")
        for id_, waits_at in waiting:
            inbox_index.hold_up(ctx, key, id_, waits_at)
        first = min(id_ for id_, _ in waiting)
        held = min(first, mail.held) if mail.held else first
        write_mail(ctx, key, InboxIndexEntry(mail.messages, mail.oldest, held))

    def let_go(self, ctx: Evaluation, key: bytes, id_: bytes) -> None:
        """Let a message no longer hold up its inbox: it does not wait any more, nor come back."""
        mail = read_mail(ctx, key)
        if mail is not None and mail.held:
            held = inbox_index.first_left(ctx, key, mail.held, [id_])
            write_mail(ctx, key, InboxIndexEntry(mail.messages, mail.oldest, held))
            ctx.after.append(lambda: self._wake([Arrival(key)]))

    def _find(
        self, ctx: Evaluation, key: bytes, ids: Iterable[bytes], mail: InboxIndexEntry
    ) -> Iterator[tuple[bytes, bytes, bool]]:
        """Iterate over the requested messages, and the first one that is left, as not found."""
        prefix = keys.inbox_prefix(key)
        wanted = dict.fromkeys(ids)
        if mail.oldest in wanted:
            entries = ctx.iterate(prefix + mail.oldest, prefix + LAST_ID)
            for raw, stored in entries:
                id_ = raw[-MESSAGE_ID_BYTES:]
                if id_ not in wanted:
                    yield id_, b"", False
                    break
                del wanted[id_]
                yield id_, stored, True
        for id_ in wanted:
            message = ctx.get(prefix + id_)
            if message is None:
                raise _reaped_by_another(key)
            yield id_, message, True


def _with_back(
    ctx: Evaluation,
    key: bytes,
    before: InboxIndexEntry,
    arrived: Stored,
    oldest: bytes,
) -> InboxIndexEntry:
    """Return the mail of an inbox that is held up, after messages have arrived there.

    The message that holds it up may be among them.
    """
    held = inbox_index.first_left(ctx, key, before.held, [id_ for id_, _ in arrived])
    if before.messages:
        oldest = min(oldest, before.oldest)
    return InboxIndexEntry(before.messages + len(arrived), oldest, held)


def tried_by_another(key: bytes) -> TransactionConflict:
    """Return the error for a message that was tried by others after it was given to this one."""
    return TransactionConflict(
        f"a message of {shorten(key)} was tried by another consumer after this one had seen it; "
        "nothing was changed: try again (run() does)"
    )


def _reaped_by_another(key: bytes) -> TransactionConflict:
    return TransactionConflict(
        f"another transaction has reaped a message of {shorten(key)} that this one had taken; "
        "nothing was changed: try again (run() does)"
    )
