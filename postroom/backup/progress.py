"""The receiver of the progress of a backup, of its verification or its restore."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A function that is told how far the work is."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report that ``done`` parts of ``total`` are done of a stage.

        Args:
            stage: what is being done, in a few words.
            done: how many parts are done.
            total: of how many.
        """


def silent(stage: str, done: int, total: int | None) -> None:
    """Ignore the progress."""
    del stage, done, total
