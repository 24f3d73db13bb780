"""What a range can do: a table from the type of a request to its evaluator.

A range knows its own requests (:mod:`postroom.ranges.evaluators`). Other packages add theirs when a
node is put together, so that a range need not know what a message is. Each replica has its own
registry, because evaluators may keep state in the leaseholder's memory (locks, cursors).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.errors import Error
from postroom.kv.engine import Reader, WriteSet
from postroom.ranges.contract import Request
from postroom.ranges.evaluation import Evaluation, View

ReadEvaluator: TypeAlias = Callable[[View, Any], Any]
WriteEvaluator: TypeAlias = Callable[[Evaluation, Any], Any]

CHECKS_LONG: Final = "what it has read takes long to check"


class ChecksFirst(NamedTuple):
    """A command whose check may take long, and is made beside the proposals then.

    Attributes:
        parts: checks what a request has read, in parts.
        evaluate: evaluates it once it is checked.
        conflict: makes the error for a key that has changed.
    """

    parts: Callable[[Any, Any], Generator[object, None, None]]
    evaluate: WriteEvaluator
    conflict: Callable[[bytes], Error]


@dataclass(slots=True)
class Registry:
    """The evaluators of one replica.

    Attributes:
        reads: answered from applied state; may raise ``Blocked`` or ``MustWait``.
        commands: evaluated into a proposal of their own accord.
        checks_first: those of the commands that yield ``CHECKS_LONG`` if their check takes long.
        writes: evaluated inside a transaction.
        companions: evaluated after the requests of a proposal, together like one more request, when
            those have sent or deferred anything: what can be done along with them (delivering what
            they send). Who has more to do than a turn has room for answers a generator that does
            it.
        riders: evaluated last, like companions, into any proposal that is made, when the first of
            the pair says that there is something to do. One that fails leaves no trace: the
            requests do not suffer.
        finishers: called once a proposal holds all its requests, to write records that sum up. Who
            has more to do than a turn has room for answers a generator that does it.
        on_applied: called with what a proposal has written when it is applied, memory knows of it,
            and somebody stands in line; before anybody is answered.
        on_written: called with what each proposal has written, once it is applied.
        on_lease: called when this replica has become the leaseholder; memory starts afresh from
            what is stored.
        on_lease_end: called when this replica serves no longer: what it kept in memory for clients
            is of no use to anybody.
        on_release: called with a transaction's id when its locks go; answers the tokens to wake.
        on_vanished: called with a transaction's id, and why, before its locks go without a word of
            it: its client has gone, or its time has passed.
        on_client_gone: called with a client's id (the first bytes of its transactions' ids) when it
            has not been heard of for too long.
        holds: asked with a client's id whether anything else is held for it than by transactions.
        holders: asked, with a new lease, which clients hold something by what is stored.
        on_given_up: called with a request that had to wait, and that nobody waits for any more.
        sizes: of what is kept in memory for clients, by name. They return to zero.
        observers: engine keys of records, and who is told, on every replica, what is applied there.
        replaced_at: the timestamp at which all that was stored was replaced by something else, if
            ever: what was read before it tells nothing.
        is_whole: whether what is stored is whole: not while it is being replaced, step by step.
            Good for who begins ``on_lease``; afresh when all of it is there.
        refusal: makes what everybody is told while the range is closed (:meth:`close`).
    """

    reads: dict[type[Request], ReadEvaluator] = field(default_factory=dict)
    commands: dict[type[Request], WriteEvaluator] = field(default_factory=dict)
    checks_first: dict[type, ChecksFirst] = field(default_factory=dict)
    writes: dict[type[Request], WriteEvaluator] = field(default_factory=dict)
    companions: list[Callable[[Evaluation], Iterator[None] | None]] = field(default_factory=list)
    riders: list[tuple[Callable[[Evaluation], bool], Callable[[Evaluation], Any]]] = field(
        default_factory=list
    )
    finishers: list[Callable[[Evaluation], Iterator[None] | None]] = field(default_factory=list)
    on_applied: list[Callable[[WriteSet], None]] = field(default_factory=list)
    on_written: list[Callable[[WriteSet], None]] = field(default_factory=list)
    on_lease: list[Callable[[Reader], None]] = field(default_factory=list)
    on_lease_end: list[Callable[[], None]] = field(default_factory=list)
    on_release: list[Callable[[bytes], list[object]]] = field(default_factory=list)
    on_vanished: list[Callable[[bytes, str], None]] = field(default_factory=list)
    on_client_gone: list[Callable[[bytes], None]] = field(default_factory=list)
    holds: list[Callable[[bytes], bool]] = field(default_factory=list)
    holders: list[Callable[[], Iterable[bytes]]] = field(default_factory=list)
    on_given_up: list[Callable[[object], None]] = field(default_factory=list)
    sizes: dict[str, Callable[[], int]] = field(default_factory=dict)
    observers: dict[bytes, Callable[[bytes | None], None]] = field(default_factory=dict)
    replaced_at: int = 0
    is_whole: bool = True
    refusal: Callable[[], Error] | None = None
    _withheld: list[tuple[dict[type, Any], dict[type, Any]]] = field(default_factory=list)

    def close(self, refusal: Callable[[], Error]) -> None:
        """Refuse all requests until :meth:`open`, except those that are served in a restore.

        Requests that wait go on waiting.
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
