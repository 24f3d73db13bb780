"""What a fork leaves to the child: nothing that it could use.

A child has the memory of its parent, but not its threads, and both have the same files open. What
the child wrote would be acknowledged and lost, or would spoil what the parent writes. So whatever
owns threads or files says here that it must not go on in a child, and is told when it is in one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Final, Protocol


class Forkable(Protocol):
    """Something that ends where the process is forked."""

    def forked(self) -> None:
        """This is the child: refuse everything from now on. No other thread runs."""


def refusal(how: str, instead: str) -> str:
    """What a database says in the child: ``how`` it came to be, and what to do ``instead``."""
    return (
        f"this database was {how} before the process was forked; nothing was changed: {instead} "
        "after forking, or start processes with multiprocessing's spawn"
    )


def mind(each: Forkable) -> None:
    """Tell ``each`` when it finds itself in a child, as long as anybody else knows of it."""
    _minded.add(each)


def keep_for_ever(each: object) -> None:
    """Have ``each`` never destroyed in this process: its destructor would wait for threads that
    only the parent has.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


_minded: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_minded):
        each.forked()


os.register_at_fork(after_in_child=_after_fork)
