"""The end of databases in a child process: a fork leaves it nothing that it could use.

A child has the memory of its parent, but not its threads, and both have the same files open. Writes
of the child would be acknowledged and lost, or would spoil those of the parent. An owner of threads
or files therefore says here that it must not go on in a child, and is told when it is in one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Final, Protocol


class Forkable(Protocol):
    """An object that ends where the process is forked."""

    def forked(self) -> None:
        """Refuse everything from now on: this is the child. No other thread runs."""


def refusal(how: str, instead: str) -> str:
    """Return the error message for the child: ``how`` the database came to be, and what to do."""
    return (
        f"this database was {how} before the process was forked; nothing was changed: {instead} "
        "after forking, or start processes with multiprocessing's spawn"
    )


def mind(each: Forkable) -> None:
    """Tell ``each`` when it finds itself in a child, as long as anybody else knows of it."""
    _minded.add(each)


def keep_for_ever(each: object) -> None:
    """Let ``each`` never be destroyed in this process.

    Its destructor would wait for threads that only the parent has.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


_minded: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_minded):
        each.forked()


os.register_at_fork(after_in_child=_after_fork)
