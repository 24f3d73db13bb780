"""What a node does when a part of its data cannot be read: it makes room for those that can.

A block of a table file that does not match its checksum stays as it is; the log and the other
members have what was in it. So a member of a group hands over and never leads again: it votes,
acknowledges and feeds its log, which is sound, until its disk is replaced like a lost one. That is
written down, so that it does not lead after a restart either.

A store with nobody else to ask goes on serving what it can read.
"""

from __future__ import annotations

import logging
from typing import Final

from postroom.kv import keys
from postroom.kv.engine import Engine
from postroom.limits import DAMAGE_CHARACTERS_MAX

DAMAGE_KEY: Final = keys.store_key("damage")

_log = logging.getLogger(__name__)


class Damage:
    """What is known of the damage of a node's disk.

    Args:
        engine: the disk.

    Attributes:
        found: what cannot be read, for people; empty: nothing that is known of.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.found = (engine.get(DAMAGE_KEY) or b"").decode(errors="replace")

    def note(self, error: Exception) -> bool:
        """Remember ``error``, also after a restart; false if there was one already.

        Raises:
            EngineFailed: it cannot be written.
        """
        if self.found:
            return False
        self.found = str(error)[:DAMAGE_CHARACTERS_MAX]
        _log.error("this node does not lead any more: replace its disk: %s", self.found)
        self._engine.write({DAMAGE_KEY: self.found.encode()}, sync=True)
        return True
