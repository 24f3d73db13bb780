"""A turn of a node in its three parts. Anything may happen between them.

::

    idle ── prepare ──▶ prepared ── write ──▶ written ── finish ──▶ idle

The power may fail at any write, wherever in the code that is.
"""

from __future__ import annotations

import enum

from postroom.errors import Error
from postroom.kv.engine import WriteSet
from postroom.server.node import Node


class PowerFailure(BaseException):
    """An event that is raised where the power fails.

    It is not an ``Exception``: nothing may catch it on its way.

    Attributes:
        power: whether what was not synced may be lost.
    """

    power = True


class ProcessDied(PowerFailure):
    """An event that is raised where only the process ends."""

    power = False


class Part(enum.Enum):
    """A place in a turn."""

    IDLE = enum.auto()
    PREPARED = enum.auto()
    WRITTEN = enum.auto()


class Turn:
    """The turn of one life of a node.

    Attributes:
        part: where the turn stands.
        staged: the writes of the turn.
        error: the error of writing them.
    """

    def __init__(self) -> None:
        self.part = Part.IDLE
        self.staged: WriteSet = {}
        self.error: Error | None = None

    @property
    def is_under_way(self) -> bool:
        """Return whether the turn has begun, and has not ended."""
        return self.part is not Part.IDLE

    def take_part(self, node: Node) -> Part:
        """Do the next part; return where the turn stands then."""
        match self.part:
            case Part.IDLE:
                self.staged = node.prepare()
                self.part = Part.PREPARED
            case Part.PREPARED:
                self.error = node.write(self.staged)
                self.part = Part.WRITTEN
            case Part.WRITTEN:
                self.part = Part.IDLE
                node.finish(self.error)
        return self.part
