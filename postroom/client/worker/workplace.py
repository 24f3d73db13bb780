"""The objects that the loops of one run of a worker share."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from postroom.client.worker.calling import FunctionCaller
from postroom.client.worker.supervision import Supervisor


class Workplace(NamedTuple):
    """The objects that the loops of one run of a worker share.

    Attributes:
        caller: calls functions.
        supervisor: runs loops, and logs their trouble.
        stopping: set when the loops are to stop.
        slots: the slots of the worker; ``None``: it has as many as its tasks.
    """

    caller: FunctionCaller
    supervisor: Supervisor
    stopping: asyncio.Event
    slots: asyncio.Semaphore | None


__all__ = ["Workplace"]
