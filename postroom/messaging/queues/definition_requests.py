"""The requests about queues themselves: make, change and drop them; and their settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from postroom.limits import ATTEMPTS_MAX_DEFAULT
from postroom.messaging.queues.requests import Group, Kind, Priority, QueueName
from postroom.ranges.checks import Headers
from postroom.ranges.contract import ConcernsRoot, NeedsQueue, Write
from postroom.ranges.requests import Payload
from postroom.ranges.rights import Need, Verb


class QueueSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The settings of a queue. Times are in seconds.

    Attributes:
        ack_wait: how long a consumer may hold a message before it is fired again.
        min_backoff: the shortest wait before it is fired again (``None``: no bound).
        max_backoff: the longest one (``None``: no bound).
        max_attempts: the number of failures after which a message is dead (``None``: no limit).
        purge_after: how long an acknowledged message is kept; 0: it is deleted at once.
        archive: acknowledged messages are archived instead, and never purged.
        batch_size: how many messages one answer gives to a consumer at most.
        cache_size: how many messages a manager keeps in memory.
        poller_interval: how often the stored state is read although no timer rang.
        max_rate: messages a second that the whole queue fires (``None``: any number).
        max_concurrency: how many messages of the whole queue may be leased at a time.
        order: ``"none"``, or ``"group"``: in a group one at a time, in order.
        on_duplicate: ``"ignore"``, ``"error"`` or ``"replace"``.
        dead_letter_queue: the queue for the dead messages, instead of this queue's own dead
            letters.
        group_max_rate: messages a second of each group (``None``: any number).
        group_max_concurrency: how many messages of each group may be leased at a time (``None``:
            any number).
    """

    ack_wait: float = 30.0
    min_backoff: float | None = None
    max_backoff: float | None = None
    max_attempts: int | None = ATTEMPTS_MAX_DEFAULT
    purge_after: float = 86400.0
    archive: bool = False
    batch_size: int = 10
    cache_size: int = 10_000
    poller_interval: float = 30.0
    max_rate: float | None = None
    max_concurrency: int | None = None
    order: str = "none"
    on_duplicate: str = "ignore"
    dead_letter_queue: str | None = None
    group_max_rate: float | None = None
    group_max_concurrency: int | None = None


class QueueDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A queue as it is stored.

    Attributes:
        number: the number under which its messages are stored; a queue that is dropped and made
            again gets another one.
        created_at: the timestamp of the commit that made it.
        paused: whether nothing is fired.
        dropped: whether its messages are being deleted, and it cannot be found any more.
    """

    name: str
    number: int
    created_at: int
    settings: QueueSettings
    paused: bool = False
    dropped: bool = False


class DroppedQueue(QueueDefinition, frozen=True, array_like=True):
    """A dropped queue as it is stored.

    Attributes:
        version: the version of the definitions with which it was dropped, as long as ranges may not
            have learned that; 0: all have.
    """

    version: int = 0


class ToldQueue(QueueDefinition, frozen=True, array_like=True):
    """A queue in an answer.

    Attributes:
        damaged: why it cannot be used; empty: it can. If its definition cannot be read, only the
            name is known.
    """

    damaged: str = ""


class ConcernsDefinition(ConcernsRoot):
    """A write of the definition of the queue ``name``."""

    __slots__ = ()
    verbs: ClassVar[tuple[Verb, ...]]

    @property
    def name(self) -> str:
        """Return the name of the queue."""
        raise NotImplementedError

    def dead_letter_queue(self) -> object:
        """Return the name of the queue that gets the dead messages from now on, or ``None``."""
        return None

    def needs(self) -> Iterator[Need]:
        """Yield the rights to the queue, and to enqueue in that for its dead messages."""
        for verb in self.verbs:
            yield Need(verb, queue=self.name)
        receiver = self.dead_letter_queue()
        if receiver:
            yield Need(Verb.ENQUEUE, queue=str(receiver))


class CreateQueue(ConcernsDefinition, Write, frozen=True, tag="create_queue"):
    """A request to make a queue; it fails if there is one of that name with other settings."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    name: QueueName
    settings: QueueSettings

    def dead_letter_queue(self) -> object:
        """Return the one of the settings."""
        return self.settings.dead_letter_queue


class UpdateQueue(ConcernsDefinition, Write, frozen=True, tag="update_queue"):
    """A request to change a queue: its ``settings`` by name, and ``paused`` if it is given.

    The changed settings are checked as a whole.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    name: QueueName
    settings: dict[str, bool | int | float | str | None]
    paused: bool | None = None

    def dead_letter_queue(self) -> object:
        """Return the one of the changed settings."""
        return self.settings.get("dead_letter_queue")


class DropQueue(ConcernsDefinition, Write, frozen=True, tag="drop_queue"):
    """A request to drop a queue: the commit removes it, and its messages are deleted in steps."""

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)
    frees_room: ClassVar = True

    name: QueueName


class SetSchedule(NeedsQueue, ConcernsRoot, Write, frozen=True, tag="set_schedule"):
    """A request to enqueue ``payload`` at each tick of ``cron``.

    ``cron=None`` ends the schedule.
    """

    answer: ClassVar = None
    since: ClassVar = 1
    verbs: ClassVar = (Verb.WRITE,)

    queue: QueueName
    name: QueueName
    cron: str | None
    timezone: str = "UTC"
    kind: Kind = ""
    payload: Payload = b""
    headers: Headers = None
    priority: Priority = 0
    group: Group = ""
