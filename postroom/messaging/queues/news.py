"""The definitions of queues, as a node has heard of them, and the ranges of the node that are told.

::

    root's leaseholder ── create, update, drop ─▶ 03 <root> 05 "definitions" → [version, names]
                                                     │ each node has a replica of the root
    ranges led by the node ◀── names ── DefinitionNews ◀─ written ─┘
       └─ a proposal of the range's own: it has learned the version ─▶ its queues change

Only the root changes definitions. The replica of the root on each node observes a record of which
queues have changed; if the replica has missed changes, all definitions are read again. Nothing is
read before a range other than the root serves here. Nor is it while a snapshot of the root is put
in place: by a part of the definitions, the other queues would look as if they were dropped.

A range has in its own log which queues it knows: its record ``definitions`` tells the version that
it has learned. It changes its queues only with a proposal that writes a later version. A next
leaseholder on a node that lags therefore knows that it does, and serves no queue before its node
has heard of that version. Thus no queue is forgotten in which a message was enqueued, and a queue
that was dropped does not return.

A number that no definition has, and that is not above the highest number given out, is that of a
queue that was dropped. One above it is of a queue that this node has not heard of yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakValueDictionary

from postroom.kv.engine import Reader
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.definitions import Definitions, decode_version
from postroom.messaging.queues.records import QueueDamaged
from postroom.ranges.contract import ROOT_ID


class QueueListener(Protocol):
    """The queues of a range that is not the root."""

    def heard(self, names: Iterable[str]) -> None:
        """Hear which queues have changed."""


class DefinitionNews:
    """The definitions that a node has heard of; see the module.

    Args:
        stored: the state of the node.
        is_whole: returns whether the root is whole there, and not being replaced by a snapshot.

    Attributes:
        version: the version of the definitions; -1: they cannot be read yet.
        highest: the highest number that a queue has had.
        by_name: the definitions that can be read, of queues that were not dropped.
        unreadable: the errors of those that cannot be read, by name.
        has_news: whether changes were observed that are not taken yet.
    """

    def __init__(self, stored: Reader, is_whole: Callable[[], bool] = lambda: True) -> None:
        self._stored = stored
        self._is_whole = is_whole
        self._definitions = Definitions(ROOT_ID)
        self._listeners: WeakValueDictionary[int, QueueListener] = WeakValueDictionary()
        self._observed: list[bytes | None] = []
        self._is_read = False
        self.version = self.highest = 0
        self.by_name: dict[str, QueueDefinition] = {}
        self.unreadable: dict[str, QueueDamaged] = {}

    def listen(self, range_id: int, listener: QueueListener) -> None:
        """Have the queues of a range hear of changes, and read all definitions if need be."""
        self._listeners[range_id] = listener
        if not self._is_read:
            self._read()

    @property
    def has_news(self) -> bool:
        """Return whether changes were observed that are not taken yet."""
        return bool(self._observed)

    def observe(self, record: bytes | None) -> None:
        """Note a change, which is written soon."""
        self._observed.append(record)

    def written(self) -> None:
        """Take the changes that were observed, since they are written; tell the ranges."""
        observed, self._observed = self._observed, []
        if not self._is_read:
            return
        changed: set[str] = set()
        for record in observed:
            version, names = decode_version(record)
            if version == self.version:
                continue
            if self.version < 0 or version != self.version + 1 or names is None:
                changed |= self.by_name.keys() | self.unreadable.keys()
                self._read()
                changed |= self.by_name.keys() | self.unreadable.keys()
                break
            self.version = version
            changed.update(names)
        else:
            for name in changed:
                self._take(name)
            self.highest = self._definitions.highest(self._stored)
        names = sorted(changed)
        for listener in list(self._listeners.values()):
            listener.heard(names)

    def _read(self) -> None:
        """Read everything, if it is whole."""
        self._is_read = True
        if not self._is_whole():
            self.by_name, self.unreadable = {}, {}
            self.version, self.highest = -1, 0
            return
        known, unreadable = self._definitions.read_all(self._stored)
        self.by_name = {each.name: each for each in known if not each.dropped}
        self.unreadable = {each.queue: each for each in unreadable}
        self.version = self._definitions.version(self._stored)
        self.highest = self._definitions.highest(self._stored)

    def _take(self, name: str) -> None:
        """Read one definition again."""
        self.by_name.pop(name, None)
        self.unreadable.pop(name, None)
        try:
            definition = self._definitions.read(self._stored, name)
        except QueueDamaged as error:
            self.unreadable[name] = error
            return
        if definition is not None:
            self.by_name[name] = definition
