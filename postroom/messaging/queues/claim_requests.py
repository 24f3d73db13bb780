"""The claims of messages, and the messages in answers.

The lease of a message is stored like all else: a claim is a write of the leaseholder. Therefore
attempts are counted and limits kept whatever fails. ``ClaimQueue`` is sent as a read that may wait.
One proposal answers all claims that can be answered.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Self, TypeAlias

import msgspec

from postroom.limits import IN_HAND_MAX
from postroom.messaging.queues.homes import home_of
from postroom.messaging.queues.requests import Attempt, Kind, QueueName
from postroom.ranges.checks import Headers
from postroom.ranges.contract import Concern, KeySet, MayWait, NeedsQueue, Read, Role, Scope
from postroom.ranges.requests import UNBOUNDED, Bound, Count, Seconds, TransactionId
from postroom.ranges.rights import Verb

CONSUMER_ID_BYTES: Final = 16
ConsumerId: TypeAlias = Annotated[
    bytes, msgspec.Meta(min_length=CONSUMER_ID_BYTES, max_length=CONSUMER_ID_BYTES)
]
"""The id of a consumer: its client's id (8 bytes), then a number that the client gave it.

When a client has gone, its consumers have gone.
"""
HomeSpan: TypeAlias = tuple[Bound, Bound | None]
"""The homes from a first one up to, but without, an end; ``None``: there is no end."""
EVERY_HOME: Final[HomeSpan] = (b"", None)


class ClaimSelection(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a consumer takes.

    Attributes:
        start, end: the bounds of the keys; ``end=None``: no upper bound.
        kinds: the kinds; ``None``: every kind.
        where: header names and values that a message must have, all of them.
    """

    start: Bound = b""
    end: Bound | None = None
    kinds: tuple[Kind, ...] | None = None
    where: Headers = None


class StoredQueueMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in an answer.

    Attributes:
        state: ``scheduled``, ``ready``, ``leased``, ``done``, ``archived`` or ``dead``.
        first_scheduled: the timestamp for which it was scheduled first.
        scheduled: the timestamp at which it was, or will be, fired.
        epoch: how many times it was fired before.
        leased_until: a timestamp; 0: nobody holds it.
        done_at: the timestamp of its acknowledgement, or death; 0: it is live.
        fired_at: the timestamp at which it was fired for its holder, or for the attempt that ended
            it; 0: there was none.
        lasts: for how many milliseconds a claimed message is leased, from the answer on. With it,
            no client need compare a timestamp with its own clock.
    """

    key: bytes
    kind: str
    id: bytes
    payload: bytes
    headers: Headers
    priority: int
    group: str
    created_at: int
    first_scheduled: int
    scheduled: int
    epoch: int
    leased_until: int
    last_error: str
    state: str
    done_at: int = 0
    fired_at: int = 0
    lasts: int = 0

    @property
    def locator(self) -> tuple[bytes, str, bytes]:
        """Return its home, its kind and its id."""
        home = home_of(self.key, self.group) if self.group else self.key
        return home, self.kind, self.id


class Claimed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of a claim.

    Attributes:
        messages: the messages that were leased to the consumer.
        over: the attempts it named that are over, by their indexes in ``in_hand``.
        asked: the span of homes that was asked, noted by a client that asked one of several ranges,
            or by a node that has asked all of its ranges; ``None``: all.
        without: spans of homes of other ranges of the node that have nothing for the claim either.
    """

    messages: list[StoredQueueMessage]
    over: list[int] = []
    asked: HomeSpan | None = None
    without: list[HomeSpan] = []


class ClaimQueue(NeedsQueue, MayWait, Read, frozen=True, tag="claim_queue"):
    """A claim of ready messages, leased to a consumer; with ``wait``, as soon as there is one.

    Attributes:
        messages_max: the credit: how many messages the consumer takes now.
        bytes_max: the bytes of payload at most; one message may have more.
        seconds: the duration of the leases; 0: the queue's ``ack_wait``.
        transaction_id: for ``tx.claim``: the leases end with the transaction; else ``None``.
        number: the number of this claim of its consumer; 0: it is never sent again.
        again: whether it may have been answered before. Then it gets the messages that it got
            before and still holds; with ``messages_max=0`` nothing else.
        in_hand: attempts of this consumer, which has no credit left. The answer says which of them
            are over; with ``wait``, as soon as one is. No message is leased.
        homes: the span of homes that is asked, which lies in one range. The selection is by keys,
            and a message with a group lies elsewhere.
        at_node: whether it waits for a message of any range that the node leads, however long that
            is. The answer tells the span of the range. ``homes``, ``again`` and ``in_hand`` say
            nothing then.
    """

    answer: ClassVar = Claimed
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WORK,)
    role: ClassVar = Role.WRITE
    locks: ClassVar = True
    changes_holdings: ClassVar = True
    own_ids: ClassVar = ("consumer", "transaction_id")

    queue: QueueName
    consumer: ConsumerId
    messages_max: Count
    selection: ClaimSelection
    wait: bool = False
    bytes_max: Count = UNBOUNDED
    seconds: Seconds = 0.0
    transaction_id: TransactionId | None = None
    number: Count = 0
    again: bool = False
    in_hand: Annotated[list[Attempt], msgspec.Meta(max_length=IN_HAND_MAX)] | None = None
    homes: HomeSpan = EVERY_HOME
    at_node: bool = False

    def concerns(self) -> Concern:
        """Return the homes of the messages in hand, else the span of homes that is asked."""
        if self.at_node:
            return Scope.NODE
        if self.in_hand is None:
            return KeySet(spans=(self.homes,))
        return KeySet(tuple(each.home for each in self.in_hand))

    def waits_for_intents(self) -> bool:
        """Return false: a message that a transaction is about to change is not fired meanwhile."""
        return False

    def narrowed(self, concern: KeySet) -> Self:
        """Return the part of it about a piece of the span, or some of the messages in hand."""
        if self.in_hand is None:
            (homes,) = concern.spans
            return msgspec.structs.replace(self, homes=homes)
        homes_of, in_hand = {*concern.keys}, self.in_hand
        return msgspec.structs.replace(
            self, in_hand=[each for each in in_hand if each.home in homes_of]
        )
