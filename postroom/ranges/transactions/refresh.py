"""Reads over several ranges: their timestamp moves up instead of trusting clocks.

::

    the first read    at its leaseholder's clock, T
    another range     Refresh(what is read, after T, until now)
                        nothing later ─▶ read at T
                        a version at T' ─▶ it may have been acknowledged before the transaction
                                           began: T moves up to T', if nothing that was read
                                           before has changed: Refresh(that, after T, until T')

``Refresh`` tells the greatest timestamp of a version between two timestamps. The clock of the
range, and the end of its lease, have passed both when it answers: nothing that commits later can be
among them. Like any reader it waits for intents that may be.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from postroom.errors import Invalid
from postroom.kv import keys, versions
from postroom.ranges.evaluation import View
from postroom.ranges.local_reads import CLOCK_AHEAD
from postroom.ranges.ports import Registry
from postroom.ranges.transactions.requests import Refresh


class Refreshes:
    """The evaluator of ``Refresh``.

    Args:
        check_age: a function that refuses timestamps of which versions are collected.
        follow: a function that lets the clock follow a timestamp (:meth:`.LocalReads.follow`).
    """

    def __init__(
        self, check_age: Callable[[View, int], None], follow: Callable[[int], None]
    ) -> None:
        self._check_age = check_age
        self._follow = follow

    def register(self, registry: Registry) -> None:
        """Register the evaluator."""
        registry.reads[Refresh] = self.refresh

    def refresh(self, view: View, request: Refresh) -> Generator[None, None, int]:
        """Evaluate ``Refresh``.

        Raises:
            Postponed, Unavailable: the clock had not passed its timestamps.
            Invalid: they are too far ahead.
            SnapshotTooOld: versions of that time are collected.
        """
        least = max(request.after, request.until)
        if least >= view.now:
            if least <= view.now + CLOCK_AHEAD:
                self._follow(least)
            raise Invalid(f"the timestamp {least} lies in the future: use one that now() returned")
        self._check_age(view, request.after)
        return self._latest(view, request)

    def _latest(self, view: View, request: Refresh) -> Generator[None, None, int]:
        after = keys.u64(request.after)
        until = keys.u64(request.until or view.now)
        latest = after
        for key in request.keys:
            latest = max(latest, _stamp(versions.as_of(view, key, until)))
            view.steps += 1
            if view.is_used_up():
                yield
        for start, end in request.spans:
            for head, newest in versions.heads(view, start, end, reverse=False):
                if newest[1 : versions.PAYLOAD] > after:
                    latest = max(latest, _stamp(versions.visible(view, head, newest, until)))
                view.steps += 1 if newest else versions.SEEK_STEPS
                if view.is_used_up():
                    yield
        return 0 if latest == after else int.from_bytes(latest, "big")


def _stamp(version: bytes | None) -> bytes:
    return b"" if version is None else version[1 : versions.PAYLOAD]
