"""A judge of whether transactions saw lists in a serializable order that keeps real time.

It has Elle's method (Kingsbury and Alvaro, *Elle: Inferring Isolation Anomalies from Experimental
Observations*, VLDB 2020). Every element is appended once, by a known transaction. The longest read
of a list tells in which order it was written therefore. Every other read shows after which of its
writers it came, and before which::

    ww   T1 appended the element before the one that T2 appended       T1 ──▶ T2
    wr   T2 read a list that ends with an element of T1                T1 ──▶ T2
    rw   T1 read a list that ends before an element of T2              T1 ──▶ T2
    rt   T1 had returned before T2 was invoked                         T1 ──▶ T2

A cycle is an anomaly, named as in Adya's thesis by the edges it needs: G0 (ww), G1c (ww, wr),
G-single (and one rw), G2 (and more). Its name ends with *-realtime* if it needs an rt edge. Before
that come the anomalies that need no cycle:

* reads of what was never committed (G1a), of half a transaction (G1b), or of what the reader
  appends only later;
* lists that were read in orders that contradict each other or their writer's own;
* elements that are there twice;
* reads that do not show the transaction's own appends;
* appends that were acknowledged and are lost.

Two things make the judgement exact, so that it agrees with a search through all orders (see
``test_appends_oracle.py``):

* A transaction of unknown outcome of which one element was seen *has happened*: all of its other
  appends and its reads count as if they had been acknowledged. It comes after what had returned
  when it was invoked, and nothing is known of its end. One that nobody has seen is left out: if
  there is an order with it, there is one without it.
* A transaction that reads a list after its own appends reads those appends, at the end, behind the
  elements from before. Therefore it is also a read of the elements from before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from tests.sim.recorded.operations import Anomaly, Outcome, Transaction

Elements = tuple[bytes, ...]
Graph = dict[int, dict[int, str]]
"""A graph: from transaction to transaction, and why."""


class NotSerializable(Anomaly):
    """No order of the transactions explains what they read."""


def check_appends(transactions: Iterable[Transaction]) -> int:
    """Raise ``NotSerializable`` unless one order explains all; return how many were judged."""
    return _Appends(list(transactions)).check()


class _Appends:
    def __init__(self, transactions: list[Transaction]) -> None:
        self.all = transactions
        self.writers: dict[tuple[bytes, bytes], int] = {}
        self.last_of: dict[tuple[bytes, int], bytes] = {}
        for number, transaction in enumerate(transactions):
            for what, key, element in transaction.actions:
                if what == "append":
                    assert isinstance(element, bytes)
                    assert (key, element) not in self.writers, f"{element!r} is appended twice"
                    self.writers[key, element] = number
                    self.last_of[key, number] = element
        self.happened = self._happened()
        """The transactions that took place, whatever their clients know of it."""
        self.reads: list[tuple[int, bytes, Elements]] = []
        """The reads: the reader, the list, and what was there before the reader's own appends."""
        self.longest: dict[bytes, Elements] = {}

    def _happened(self) -> set[int]:
        """Return acknowledged transactions, and those of unknown outcome that one of them read."""
        happened: set[int] = set()
        found = {number for number, each in enumerate(self.all) if each.outcome is Outcome.OK}
        while found:
            happened |= found
            seen = {
                self.writers.get((key, element))
                for number in found
                for what, key, elements in self.all[number].actions
                if what == "read"
                for element in elements
            }
            found = {
                each
                for each in seen - happened
                if each is not None and self.all[each].outcome is Outcome.UNKNOWN
            }
        return happened

    def check(self) -> int:
        self._check_each()
        self._order_lists()
        self._check_dirty_reads()
        self._check_whole()
        self._check_lost()
        self._find_cycles()
        return len(self.all)

    # --- anomalies without a cycle

    def _check_each(self) -> None:
        for number in sorted(self.happened):
            for key, elements in _external_reads(self.all[number]):
                self.reads.append((number, key, elements))
        for number, key, elements in self.reads:
            twice = len(set(elements)) < len(elements)
            self._require(not twice, f"an element of {key!r} is there twice", number)
            future = any(self.writers.get((key, element)) == number for element in elements)
            self._require(not future, f"it reads of {key!r} what it appends only later", number)

    def _order_lists(self) -> None:
        """Order the lists: the longest read of a list is its order."""
        by_reader: dict[bytes, int] = {}
        for number, key, elements in self.reads:
            if key not in by_reader or len(elements) > len(self.longest[key]):
                self.longest[key], by_reader[key] = elements, number
        for number, key, elements in self.reads:
            agrees = self.longest[key][: len(elements)] == elements
            self._require(agrees, f"{key!r} was read in two orders", number, by_reader[key])

    def _check_dirty_reads(self) -> None:
        for number, key, elements in self.reads:
            for element in elements:
                writer = self.writers.get((key, element))
                if writer is None:
                    self._require(False, f"nobody appended {element!r} to {key!r}", number)
                failed = writer is not None and self.all[writer].outcome is Outcome.FAILED
                self._require(not failed, f"G1a: {element!r} was never committed", number, writer)
            if elements:
                writer = self.writers[key, elements[-1]]
                whole = self.last_of[key, writer] == elements[-1]
                self._require(whole, f"G1b: half of an append to {key!r}", number, writer)

    def _check_whole(self) -> None:
        """Check that the appends of one transaction to a list are side by side, in its order."""
        for number in sorted(self.happened):
            own: dict[bytes, Elements] = defaultdict(tuple)
            for what, key, element in self.all[number].actions:
                if what == "append":
                    own[key] += (element,)
            for key, elements in own.items():
                longest = self.longest.get(key, ())
                at = min((longest.index(each) for each in elements if each in longest), default=-1)
                there = at < 0 or longest[at : at + len(elements)] == elements
                self._require(there, f"{key!r} has its appends in another order", number)

    def _check_lost(self) -> None:
        """Check that appends acknowledged before the longest read began are in it."""
        for key, longest in self.longest.items():
            began = min(
                self.all[number].invoked_at
                for number, read, elements in self.reads
                if read == key and elements == longest
            )
            for (list_, element), writer in self.writers.items():
                known = self.all[writer].outcome is Outcome.OK
                if list_ == key and known and self.all[writer].returned_at < began:
                    there = element in longest
                    self._require(there, f"{element!r} was acknowledged, and is lost", writer)

    # --- cycles

    def _find_cycles(self) -> None:
        ww, wr, rw, rt = self._edges_ww(), self._edges_wr(), self._edges_rw(), self._edges_rt()
        for name, graphs in {
            "G0": (ww,),
            "G1c": (ww, wr),
            "G2": (ww, wr, rw),
            "G0-realtime": (ww, rt),
            "G1c-realtime": (ww, wr, rt),
            "G2-realtime": (ww, wr, rw, rt),
        }.items():
            cycle = _cycle(_union(graphs))
            if cycle is not None:
                raise NotSerializable(self._told(name, cycle))

    def _edges_ww(self) -> Graph:
        edges: Graph = defaultdict(dict)
        for key, elements in self.longest.items():
            writers = [(self.writers[key, element], element) for element in elements]
            for (one, earlier), (other, later) in pairwise(writers):
                _add(edges, one, other, f"ww: {key!r} has {earlier!r} before {later!r}")
            for writer, element in self._unseen(key) if writers else ():
                _add(edges, writers[-1][0], writer, f"ww: {key!r} had no {element!r} yet")
        return edges

    def _edges_wr(self) -> Graph:
        edges: Graph = defaultdict(dict)
        for reader, key, elements in self.reads:
            if elements:
                writer = self.writers[key, elements[-1]]
                _add(edges, writer, reader, f"wr: {elements[-1]!r} was read from {key!r}")
        return edges

    def _edges_rw(self) -> Graph:
        edges: Graph = defaultdict(dict)
        for reader, key, elements in self.reads:
            longest = self.longest[key]
            if len(elements) < len(longest):
                unread = longest[len(elements)]
                why = f"rw: {unread!r} was not in {key!r} when it was read"
                _add(edges, reader, self.writers[key, unread], why)
            else:
                for writer, element in self._unseen(key):
                    why = f"rw: {element!r} was not in {key!r} when it was read"
                    _add(edges, reader, writer, why)
        return edges

    def _edges_rt(self) -> Graph:
        """Return edges from each transaction to those that began after its return: just enough."""
        edges: Graph = defaultdict(dict)
        events = sorted(
            (moment, is_return, number)
            for number, each in enumerate(self.all)
            if number in self.happened
            for moment, is_return in ((each.invoked_at, 0), (each.returned_at, 1))
        )
        frontier: list[int] = []
        for moment, is_return, number in events:
            if not is_return:
                for earlier in frontier:
                    _add(edges, earlier, number, f"rt: returned before {moment:.6f}")
            elif self.all[number].outcome is Outcome.OK:
                frontier = [each for each in frontier if number not in edges.get(each, ())]
                frontier.append(number)
        return edges

    def _unseen(self, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield appends that have happened, and come after everything that was ever read."""
        for (list_, element), writer in self.writers.items():
            if list_ == key and writer in self.happened and element not in self.longest[key]:
                yield writer, element

    # --- telling

    def _require(self, holds: bool, what: str, *numbers: int | None) -> None:
        if not holds:
            involved = [str(self.all[number]) for number in numbers if number is not None]
            raise NotSerializable("\n    ".join([what, *involved]))

    def _told(self, name: str, cycle: list[tuple[int, str]]) -> str:
        antidependencies = sum(why.startswith("rw") for _, why in cycle)
        if name.startswith("G2") and antidependencies == 1:
            name = name.replace("G2", "G-single")
        lines = [f"{name}: these transactions have no order"]
        for number, why in cycle:
            lines += [str(self.all[number]), f"  └─ {why}"]
        return "\n    ".join([*lines, "(and so again from the first)"])


def _external_reads(transaction: Transaction) -> Iterator[tuple[bytes, Elements]]:
    """Yield what a transaction found of lists, without its own appends.

    Raises:
        NotSerializable: it does not see what it did itself, or sees something else that changes.
    """
    known: dict[bytes, Elements] = {}
    own: dict[bytes, Elements] = defaultdict(tuple)
    for what, key, about in transaction.actions:
        if what == "append":
            assert isinstance(about, bytes)
            own[key] += (about,)
            continue
        assert isinstance(about, tuple)
        before = len(about) - len(own[key])
        fits = before >= 0 and about[before:] == own[key]
        if not fits or (own[key] and known.get(key, about[:before]) != about[:before]):
            raise NotSerializable(f"it does not see its own appends to {key!r}: {transaction}")
        known[key] = about[:before]
        yield key, about[:before]


def _add(edges: Graph, one: int, other: int, why: str) -> None:
    if one != other:
        edges[one].setdefault(other, why)


def _union(graphs: Iterable[Graph]) -> Graph:
    whole: Graph = defaultdict(dict)
    for graph in graphs:
        for source, targets in graph.items():
            for target, why in targets.items():
                whole[source].setdefault(target, why)
    return whole


_SHORTEST_OF: Final = 50
"""The size of a knot of transactions from which on a short cycle is looked for."""


def _cycle(graph: Mapping[int, Mapping[int, str]]) -> list[tuple[int, str]] | None:
    """Return a short cycle, as transactions with the edge to the next one, or ``None``."""
    knot = _knot(graph)
    best: list[tuple[int, str]] | None = None
    for tried, start in enumerate(sorted(knot)):
        if tried >= _SHORTEST_OF and best is not None:
            break
        cycle = _shortest_cycle(graph, start, knot)
        if cycle is not None and (best is None or len(cycle) < len(best)):
            best = cycle
    return best


def _knot(graph: Mapping[int, Mapping[int, str]]) -> set[int]:
    """Return all cycles, and what lies between two of them.

    All else is taken away, again and again: nodes without an edge to them, or from them.
    """
    backwards: dict[int, dict[int, str]] = defaultdict(dict)
    for source, targets in graph.items():
        for target in targets:
            backwards[target][source] = ""
    left = set(graph) | set(backwards)
    for forth, back in ((graph, backwards), (backwards, graph)):
        degrees = {each: sum(other in left for other in back.get(each, ())) for each in left}
        free = [each for each, degree in degrees.items() if not degree]
        while free:
            gone = free.pop()
            left.discard(gone)
            for target in forth.get(gone, ()):
                if target in left:
                    degrees[target] -= 1
                    if not degrees[target]:
                        free.append(target)
    return left


def _shortest_cycle(
    graph: Mapping[int, Mapping[int, str]], start: int, knot: set[int]
) -> list[tuple[int, str]] | None:
    came_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        at = waiting.popleft()
        for target in graph.get(at, ()):
            if target == start:
                path = [at]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                path.reverse()
                return [(one, graph[one][other]) for one, other in pairwise([*path, start])]
            if target in knot and target not in came_from:
                came_from[target] = at
                waiting.append(target)
    return None
