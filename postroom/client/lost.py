"""The keys and spans on which tries of a transaction lost; the next try locks them.

A try that lost names the keys that others have changed. The next one locks these, and the keys
that the last one wrote: it usually writes them again, and would lock them one by one. A span in
which something has changed is locked when a second try has lost on it; before that, only the
keys in it that had changed.

All tries together have the age of the first one. In the end it is the oldest, and wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from postroom.errors import Retryable, TransactionConflict
from postroom.limits import LOCKS_AT_ONCE_MAX

T = TypeVar("T")

_WRITTEN_KEPT: Final = 100


class Lost:
    """The keys and spans that a transaction has lost on.

    Attributes:
        began: when the first try began, as a timestamp; 0 before that.
        keys, spans: what the next try locks.
    """

    __slots__ = ("_seen", "began", "keys", "spans")

    def __init__(self) -> None:
        self.began = 0
        self.keys: dict[bytes, None] = {}
        self.spans: dict[tuple[bytes, bytes | None], None] = {}
        self._seen: set[tuple[bytes, bytes | None]] = set()

    def add(self, error: Retryable, written: Iterable[bytes]) -> bool:
        """Note a failed try; return whether it lost on something that it had not locked.

        Args:
            error: the error that ended it.
            written: the keys that it wanted to write.
        """
        if not (isinstance(error, TransactionConflict) and (error.keys or error.spans)):
            return False
        before = len(self.keys) + len(self.spans)
        new = {key: None for key in error.keys if key not in self.keys}
        self.spans |= {span: None for span in error.spans if span in self._seen}
        self._seen.update(error.spans)
        also = dict.fromkeys(list(written)[:_WRITTEN_KEPT])
        self.keys = _first({**new, **self.keys, **also})
        self.spans = _first(self.spans)
        return bool(new) or len(self.keys) + len(self.spans) > before


def _first(of: dict[T, None]) -> dict[T, None]:
    return dict.fromkeys(list(of)[:LOCKS_AT_ONCE_MAX])
