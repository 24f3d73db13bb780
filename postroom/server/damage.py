"""The damage of a node's data: blocks that cannot be read.

A block of a table file that does not match its checksum stays as it is; the log and the other
members have its contents. A member of a group therefore hands over and never leads again. It votes,
acknowledges and feeds its log, which is sound, until its disk is replaced like a lost one. A record
of the damage keeps it from leading after a restart.

A store without other members goes on serving the data that it can read.
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
    """The known damage of a node's disk.

    Args:
        engine: the disk.

    Attributes:
        found: the data that cannot be read, for people; empty: no damage is known.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.found = (engine.get(DAMAGE_KEY) or b"").decode(errors="replace")

    def note(self, error: Exception) -> bool:
        """Remember ``error``, also after a restart; return false if damage was known already.

        Raises:
            EngineFailed: the record cannot be written.
        """
        if self.found:
            return False
        self.found = str(error)[:DAMAGE_CHARACTERS_MAX]
        _log.error("this node does not lead any more: replace its disk: %s", self.found)
        self._engine.write({DAMAGE_KEY: self.found.encode()}, sync=True)
        return True
