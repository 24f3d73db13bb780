"""The part of a log that a storage still needs: kept by groups, or not yet in the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from postroom.kv import keys
from postroom.kv.engine import WriteSet


class RetainedLog(NamedTuple):
    """The part of its log that a group keeps.

    Attributes:
        entries: what the keys of its entries begin with.
        base: the last entry that it does not keep, which is applied; and its term.
        last: the newest one.
        values: the entries of a span of indices, both included, as they are stored.
    """

    entries: bytes
    base: int
    base_term: int
    last: int
    values: Callable[[int, int], Iterable[tuple[int, bytes]]]


@dataclass
class Reclamation:
    """The state is being synced so that older segments can go."""

    bases: dict[bytes, tuple[int, int]]
    marker: int
    done: bool = False
    error: Exception | None = None


def base_notes(bases: dict[bytes, tuple[int, int]]) -> WriteSet:
    """Return the notes that tell up to which entry the state of each group is durable."""
    return {
        entries[:-1] + b"b": keys.u64(index) + keys.u64(term)
        for entries, (index, term) in bases.items()
    }
