"""The ready messages of a queue that are in memory, and whose turn it is.

::

    stored   group a   1 2 3 4 5 6 7 8 …          cache   a  1 2 3 4    (more are stored)
             group b   1 2                                b  1 2
             group c   1                                  c  1
                                                   turns   a b c a b a a …

The groups take turns, one message each (:mod:`.turns`). Within a group it is the order of rank
(:mod:`.records`). Memory is bounded: no more entries than ``size`` are kept, without their
payloads, and the rest is read as those are fired. Reading goes through the stored groups in turns
as well, a *quantum* of each: so a flood of one group delays another one by one such round at most.

Of a group, the cache holds its first entries without a gap. ``more`` says that there may be others
behind them. ``knows_all_groups`` says that whatever group is not here has nothing stored: what
comes for such a group is taken in. If there is no room, a group that has many here gives up its
last ones.

A group that may not fire just now (its limits, its failing head) is *held*: it has no turns until
it is freed. If there is no room for others, it is left out until then, but for its name. Taking an
entry costs the same, but for a logarithm, however many groups and kinds there are, and however many
groups are held. Nothing here is stored, and nothing is decided: all of it can be forgotten and read
again (``forget``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Final, TypeAlias

from postroom.messaging.queues.lanes import Group, Sizes
from postroom.messaging.queues.records import Entry
from postroom.messaging.queues.turns import Turns, Wants

Placed: TypeAlias = tuple[bytes, Entry]
"""An entry and its engine key, by which those of a group are ordered."""

QUANTUM_SHARE: Final = 16
HELD_PER_ENTRY: Final = 16
"""So many groups that are held are remembered for each entry that there is room for."""
ORDERS_KEPT: Final = 64
"""For so many wishes an order of turns is kept."""


class ReadyCache:
    """See the module. Its length is how many entries it holds.

    Args:
        size: how many it may hold.
        ordered: whether the groups are in order: of each only the first entry may be taken.
        on_left_out: told of what is stored and not kept here.

    Attributes:
        knows_all_groups: see the module. ``knows_what_goes``: it knows all but some that are held.
        cursor: where the round of reading goes on; ``b""``: a new one begins.
        round_is_whole: whether that round has missed no group so far; ``round_has_passed``: whether
            it has left out one that is held, which comes when it is freed.
        additions: rises with whatever is added, or freed.
    """

    def __init__(
        self, size: int, *, ordered: bool, on_left_out: Callable[[bytes, Entry], None]
    ) -> None:
        self.size = size
        self.ordered = ordered
        self._on_left_out = on_left_out
        self.additions = 0
        self.forget()

    def forget(self) -> None:
        """Nothing is known of what is stored."""
        self._groups: dict[str, Group] = {}
        self._sizes = Sizes()
        self._alive: dict[bytes, Entry] = {}
        self._turns: dict[Wants | None, Turns] = {}
        self._held: dict[str, dict[Turns, None]] = {}
        self._watched: set[str] = set()
        self._more: dict[str, None] = {}
        self._hungry: dict[str, None] = {}
        self.knows_all_groups = False
        self.knows_what_goes = False
        self.round_is_whole = False
        self.round_has_passed = False
        self.cursor = b""
        self.additions += 1

    def nothing_is_stored(self) -> None:
        """There is no entry at all: what comes from now on is all there is."""
        self.forget()
        self.knows_all_groups = self.knows_what_goes = True

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, key: bytes) -> bool:
        return key in self._alive

    @property
    def is_complete(self) -> bool:
        """Whether all that is stored is here."""
        return self.knows_all_groups and not self._more

    @property
    def quantum(self) -> int:
        """How many entries of a group one round reads."""
        return max(1, self.size // QUANTUM_SHARE)

    # --- in

    def offer(self, key: bytes, entry: Entry) -> bool:
        """An entry is stored; whether it is kept here."""
        if key in self._alive:
            return True
        name = entry.group
        group = self._groups.get(name)
        if group is None and self._may_open(name):
            group = self._open(name)
        if group is None or (group.more and key > group.last):
            self._on_left_out(key, entry)
            return False
        self._add(group, key, entry)
        self._hungry.pop(name, None)
        if len(self._alive) > self.size:
            self._give_up()
        return key in self._alive

    def _may_open(self, name: str) -> bool:
        """Whether an unknown group may be taken in: nothing of it is stored."""
        if self.knows_all_groups and len(self._groups) < self.size:
            return True
        self._misses_a_group(name)
        return False

    def _misses_a_group(self, name: str) -> None:
        if name in self._held:  # it comes when it is freed
            self.knows_what_goes |= self.knows_all_groups
            self.round_has_passed = True
        else:
            self.knows_what_goes = self.round_is_whole = False
        self.knows_all_groups = False

    def read(self, name: str, placed: list[Placed], up_to: bytes, *, has_more: bool) -> None:
        """What is stored of a group behind what is here, up to a key, and whether there is more."""
        group = self._groups.get(name) or self._open(name)
        group.last = up_to or group.last
        alive = self._alive
        self._add_all(name, group, [each for each in placed if each[0] not in alive])
        self._set_more(name, group, has_more=has_more)
        if group.count:
            self._hungry.pop(name, None)
        else:
            self._emptied(name, group)

    def known_up_to(self, name: str) -> bytes | None:
        """Up to which key all entries of a group are here (``b""``: all that there are); ``None``:
        nothing is known of it.
        """
        group = self._groups.get(name)
        if group is None:
            return None
        return group.last if group.more else b""

    def is_fed(self, name: str) -> bool:
        """Whether a group needs no more here: it is held, and has some to go on with."""
        return name in self._held and name not in self._hungry

    def groups_with_more(self, groups_max: int) -> list[str]:
        """Of which groups more is stored; those first that have nothing here."""
        hungry, held = self._hungry, self._held
        fed: Iterable[str] = (n for n in self._more if n not in hungry and n not in held)
        return list(islice(chain(self._hungry, fed), groups_max))

    def begin_round(self) -> None:
        """The stored groups are read once more, from the first one on."""
        self.round_is_whole, self.round_has_passed = True, False

    def end_round(self) -> bool:
        """They were all come by; whether nothing was missed but for what is held."""
        self.cursor = b""
        self.knows_what_goes = self.round_is_whole
        self.knows_all_groups = self.round_is_whole and not self.round_has_passed
        return self.round_is_whole

    def passes(self, name: str) -> bool:
        """Whether a group need not be taken in: it is held, and unknown but for that."""
        if name not in self._held or name in self._groups:
            return False
        self.round_has_passed = True
        return True

    def has_room_for(self, name: str) -> bool:
        """Whether a group can be taken in: if need be in place of one that has nothing here, and
        is found again by another round.
        """
        if name in self._groups or len(self._groups) < self.size:
            return True
        self.knows_what_goes = self.round_is_whole = False
        hungry = next(iter(self._hungry), None)
        if hungry is None:
            return False
        self._forget_group(hungry)
        return True

    def _forget_group(self, name: str) -> None:
        """Nothing is known of a group any more."""
        group = self._groups.pop(name)
        for key, _, entry in group.queued():
            del self._alive[key]
            self._on_left_out(key, entry)
        self._sizes.changed(name, group.count, 0)
        self._hungry.pop(name, None)
        self._more.pop(name, None)
        self._misses_a_group(name)

    def _set_more(self, name: str, group: Group, *, has_more: bool) -> None:
        group.more = has_more
        self._more.pop(name, None)
        if has_more:
            self._more[name] = None  # behind those that were read longer ago

    def _open(self, name: str) -> Group:
        self._groups[name] = group = Group(self._alive, in_one_lane=self.ordered)
        return group

    def _add(self, group: Group, key: bytes, entry: Entry) -> None:
        self.additions += 1
        queued = (key, self.additions, entry)
        self._alive[key] = entry
        group.push(queued)
        if not group.count & (group.count - 1):  # a power of two
            self._sizes.changed(entry.group, group.count - 1, group.count)
        for turns in self._turns.values():
            turns.added(queued)

    def _add_all(self, name: str, group: Group, placed: list[Placed]) -> None:
        """Entries of one group, in the order of their keys."""
        before, number = group.count, self.additions
        queued = [(key, number + n, entry) for n, (key, entry) in enumerate(placed, 1)]
        self.additions += len(placed)
        self._alive.update(placed)
        group.push_all(queued)
        self._sizes.changed(name, before, group.count)
        for turns in self._turns.values():
            turns.added_all(name, queued)

    def make_room(self) -> bool:
        """Held groups that have many here give some up, until half of the room is free, and then
        those that have one; whether it was not, and now is. Others might wait behind them for as
        long as they are held.
        """
        before, most = len(self._alive), self.size // 2
        while len(self._alive) > most:
            name = self._sizes.largest()
            if self._groups[name].count < 2:
                return self._forget_held(most)
            if name not in self._held:
                return False
            self._give_up()
        return before > most

    def _forget_held(self, most: int) -> bool:
        """Whether so much was left out that no more than ``most`` is here. Of what was, the names
        of the groups stay, and no more than a number of them.
        """
        if len(self._held) < HELD_PER_ENTRY * self.size:
            for name in [each for each in self._held if each in self._groups]:
                if len(self._alive) <= most:
                    break
                self._forget_group(name)
        return len(self._alive) <= most

    def _give_up(self) -> None:
        """A group that has many gives up the last half of what it has here."""
        name = self._sizes.largest()
        group = self._groups[name]
        queued, before = group.queued(), group.count
        kept, given_up = queued[: len(queued) // 2], queued[len(queued) // 2 :]
        for key, _, entry in given_up:
            del self._alive[key]
            self._on_left_out(key, entry)
        group.keep(kept)
        group.last = kept[-1][0] if kept else b""
        self._sizes.changed(name, before, group.count)
        self._set_more(name, group, has_more=True)
        if not kept:
            self._emptied(name, group)

    # --- out

    def discard(self, key: bytes) -> None:
        """An entry is not ready any more."""
        entry = self._alive.get(key)
        if entry is not None:
            self._remove(key, entry.group, self._groups[entry.group])
            self.additions += self.ordered  # what was behind it may be taken now

    def _remove(self, key: bytes, name: str, group: Group) -> None:
        del self._alive[key]
        group.count -= 1
        if not group.count & (group.count + 1):  # one less than a power of two
            self._sizes.changed(name, group.count + 1, group.count)
        if not group.count:
            self._emptied(name, group)
        elif self.ordered:  # another one is its first now
            for turns in self._turns.values():
                turns.join(name)

    def _emptied(self, name: str, group: Group) -> None:
        """It has nothing here. If more is stored, that is read next."""
        if group.more:
            self._hungry[name] = None
        else:
            self._groups.pop(name, None)

    def take(self, wants: Wants | None, may: Callable[[str, Entry], bool] | None) -> Placed | None:
        """The entry whose turn it is.

        Args:
            wants: what the consumer takes; ``None``: any.
            may: whether a group may fire; if not, it is held until it is freed. ``None``: any may.
        """
        turns = self._turns.get(wants) or self._begin_turns(wants)
        if turns.has_untested:
            turns.catch_up()
        line, held, groups = turns.line, self._held, self._groups
        while line:
            name = line[0]
            group = groups.get(name)
            if group is None or name in held:
                found = None
            else:
                found = group.first(turns.kinds) if turns.is_plain else turns.first(name, group)
            if group is None or found is None:
                turns.leave()
                if name in held:
                    held[name][turns] = None
                continue
            key, _, entry = found
            if may is not None and not may(name, entry):
                turns.leave()
                held[name] = {turns: None}
                continue
            line.rotate(-1)
            self._remove(key, name, group)
            self.additions += self.ordered  # others may want what was behind it
            return key, entry
        return None

    def _begin_turns(self, wants: Wants | None) -> Turns:
        """All that is here is new to it."""
        if len(self._turns) >= ORDERS_KEPT:
            del self._turns[next(iter(self._turns))]
        self._turns[wants] = turns = Turns(wants, self._alive, ordered=self.ordered)
        for group in self._groups.values():
            for queued in group.queued():
                turns.added(queued)
        return turns

    def oldest(self) -> int:
        """When the oldest of those here became due; 0: there is none."""
        return min((entry.due for entry in self._alive.values()), default=0)

    # --- held groups

    def hold(self, name: str) -> None:
        """A group may not fire, as far as is known: ``additions`` rises when it is freed."""
        self._held.setdefault(name, {})

    def watch(self, name: str) -> None:
        """Of a group, something is wanted that is not its head: ``additions`` rises when that may
        have gone. Others may have the head meanwhile.
        """
        self._watched.add(name)

    def free(self, name: str) -> None:
        """A group may fire again, perhaps."""
        waiting = self._held.pop(name, None)
        if waiting is not None and name not in self._groups and not self.knows_all_groups:
            self._misses_a_group(name)
        for turns in waiting or ():
            turns.join(name)
        if waiting is not None or name in self._watched:
            self._watched.discard(name)
            self.additions += 1

    def free_all(self) -> None:
        """All may."""
        for name in [*self._held, *self._watched]:
            self.free(name)


__all__ = ["Placed", "ReadyCache", "Wants"]
