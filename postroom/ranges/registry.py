"""The abilities of a range: tables from the type of a request to its evaluator.

A range knows its own requests (:mod:`postroom.ranges.evaluators`). Other packages add theirs when a
node is put together, so that a range need not know what a message is. Each replica has its own
registry, because evaluators may keep state in the leaseholder's memory (locks, cursors).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.errors import Error
from postroom.kv.engine import WriteSet
from postroom.ranges.contract import Request
from postroom.ranges.evaluation import Evaluation, View

ReadEvaluator: TypeAlias = Callable[[View, Any], Any]
WriteEvaluator: TypeAlias = Callable[[Evaluation, Any], Any]

CHECKS_LONG: Final = "the check of its reads takes long"


class ChecksFirst(NamedTuple):
    """A command whose check may take long, and is then made beside the proposals.

    Attributes:
        parts: checks the reads of a request, in parts.
        evaluate: evaluates the request once it is checked.
        conflict: makes the error for a key that has changed.
    """

    parts: Callable[[Any, Any], Generator[object, None, None]]
    evaluate: WriteEvaluator
    conflict: Callable[[bytes], Error]


@dataclass(slots=True)
class Registry:
    """The evaluators of one replica.

    Attributes:
        reads: the evaluators of reads, which may raise ``Blocked`` or ``MustWait``.
        commands: the evaluators of requests that come by themselves.
        writes: the evaluators of requests that come in a transaction.
        on_written: called with what each proposal has written, once it is applied.
        sizes: the functions that count what is kept in memory for clients, by name. All counts
            return to zero.
        observers: called with what is applied to a record, on every replica, by engine key.
        replaced_at: the timestamp at which everything stored was replaced; 0: never. Reads before
            it prove nothing.
        is_whole: whether what is stored is whole, and not being replaced step by step.
        refusal: makes the error for every caller while the range is closed (:meth:`close`).
    """

    reads: dict[type[Request], ReadEvaluator] = field(default_factory=dict)
    commands: dict[type[Request], WriteEvaluator] = field(default_factory=dict)
    writes: dict[type[Request], WriteEvaluator] = field(default_factory=dict)
    on_written: list[Callable[[WriteSet], None]] = field(default_factory=list)
    sizes: dict[str, Callable[[], int]] = field(default_factory=dict)
    observers: dict[bytes, Callable[[bytes | None], None]] = field(default_factory=dict)
    replaced_at: int = 0
    is_whole: bool = True
    refusal: Callable[[], Error] | None = None
    _withheld: list[tuple[dict[type, Any], dict[type, Any]]] = field(default_factory=list)

    def close(self, refusal: Callable[[], Error]) -> None:
        """Refuse all requests until :meth:`open`, except those that are served in a restore.

        Calls that wait go on waiting.
        """
        if self.refusal is not None:
            return
        self.refusal = refusal

        def refuse(_: Any, __: Any) -> Any:
            raise refusal()

        for table in (self.reads, self.commands, self.writes):
            known = dict(table)
            self._withheld.append((table, known))
            table.update({kind: refuse for kind in known if not kind.is_served_in_restore})

    def open(self) -> None:
        """Serve all requests again."""
        self.refusal = None
        while self._withheld:
            table, known = self._withheld.pop()
            table.update(known)
