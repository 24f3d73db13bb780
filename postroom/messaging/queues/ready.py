"""The ready messages of a queue that are in memory, and the order in which its groups take turns.

::

    stored   group a   1 2 3 4 5 6 7 8 …          cache   a  1 2 3 4    (more are stored)
             group b   1 2                                b  1 2
             group c   1                                  c  1
                                                   rotation a b c a b a a …

The groups take turns, one message each (:mod:`.rotation`). The entries of a group are in the order
of rank (:mod:`.records`). Memory is bounded: it keeps at most ``size`` entries, without their
payloads, and the rest is read as those are fired. Reading goes through the stored groups in turns
too, a *quantum* of each. A flood of one group delays another one by one such round at most.

The cache holds the first entries of a group without a gap. ``more`` says that there may be others
behind them. ``knows_all_groups`` says that a group which is not in memory has nothing stored: a new
entry of such a group is taken in. If there is no room, a group that has many entries in memory
gives up its last ones.

A group that may not fire now (its limits, its failing head) is *held up*: it has no turns until it
is freed. If there is no room for others, only its name is kept until then. The cost of taking an
entry grows only with the logarithm of the number of groups and kinds, and not with the groups that
are held up. Nothing here is stored or decided: all of it can be forgotten and read again
(``forget``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain, islice
from typing import Final, TypeAlias

from postroom.messaging.queues.consumers import Wish
from postroom.messaging.queues.records import Entry
from postroom.messaging.queues.rotation import Group, Queued, Rotation, Sizes

Placed: TypeAlias = tuple[bytes, Entry]
"""An entry and its engine key, which orders the entries of a group."""

QUANTUM_SHARE: Final = 16
HELD_UP_PER_ENTRY: Final = 16
"""The number of groups held up that are remembered for each entry that there is room for."""
ORDERS_KEPT: Final = 64
"""The number of wishes for which a rotation is kept."""


class ReadyCache:
    """The ready messages in memory. Its length is the number of entries it holds.

    Args:
        size: how many entries it may hold.
        ordered: whether only the first entry of each group may be taken. Entries without a group
            are in no order.
        on_left_out: called with each entry that is stored and not kept here.

    Attributes:
        knows_all_groups: whether a group that is not here has nothing stored.
        knows_what_goes: the same, but for some groups that are held up.
        cursor: where the round of reading goes on; ``b""``: a new one begins.
        round_is_whole: whether that round has missed no group so far.
        round_has_passed: whether it has left out a group that is held up, which is read when it is
            freed.
        additions: a number that rises when an entry is added or a group freed.
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
        """Forget all that is known of the stored entries."""
        self._groups: dict[str, Group] = {}
        self._sizes = Sizes()
        self._alive: dict[bytes, Entry] = {}
        self._rotations: dict[Wish | None, Rotation] = {}
        self._held_up: dict[str, dict[Rotation, None]] = {}
        self._watched: set[str] = set()
        self._more: dict[str, None] = {}
        self._hungry: dict[str, None] = {}
        self.knows_all_groups = False
        self.knows_what_goes = False
        self.round_is_whole = False
        self.round_has_passed = False
        self.cursor = b""
        self.additions += 1

    def change(self, size: int, *, ordered: bool) -> None:
        """Change the size and the order; forget all if the entries do not fit any more."""
        if size < len(self) or size < len(self._groups) or ordered != self.ordered:
            self.forget()
        self.size, self.ordered = size, ordered

    def nothing_is_stored(self) -> None:
        """Note that no entry is stored: later additions are all that there is."""
        self.forget()
        self.knows_all_groups = self.knows_what_goes = True

    def __len__(self) -> int:
        return len(self._alive)

    def __contains__(self, key: bytes) -> bool:
        return key in self._alive

    @property
    def is_complete(self) -> bool:
        """Return whether all stored entries are here."""
        return self.knows_all_groups and not self._more

    @property
    def quantum(self) -> int:
        """Return how many entries of a group one round reads."""
        return max(1, self.size // QUANTUM_SHARE)

    # --- additions and reads

    def offer(self, key: bytes, entry: Entry) -> bool:
        """Offer a stored entry; return whether it is kept here."""
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
        if len(self._alive) > self.size:
            self._give_up()
        return key in self._alive

    def offer_run(self, placed: list[Placed]) -> None:
        """Offer stored entries of one group, as one by one."""
        alive = self._alive
        new = [each for each in placed if each[0] not in alive]
        name = placed[0][1].group
        group = self._groups.get(name)
        may_open = self.knows_all_groups and len(self._groups) < self.size
        is_cut = group.more if group else not may_open
        if not new or is_cut or len(alive) + len(new) > self.size:
            for key, entry in new:
                self.offer(key, entry)
            return
        new.sort()
        group = group or self._open(name)
        before = group.count
        self._add_all(name, group, new)
        self._counted(name, group, before)

    def _may_open(self, name: str) -> bool:
        """Return whether an unknown group may be taken in, because nothing of it is stored."""
        if self.knows_all_groups and len(self._groups) < self.size:
            return True
        self._misses_a_group(name)
        return False

    def _misses_a_group(self, name: str) -> None:
        if name in self._held_up:  # it is read when it is freed
            self.knows_what_goes |= self.knows_all_groups
            self.round_has_passed = True
        else:
            self.knows_what_goes = self.round_is_whole = False
        self.knows_all_groups = False

    def read(self, name: str, placed: list[Placed], up_to: bytes, *, has_more: bool) -> None:
        """Add the stored entries of a group behind those in memory, up to a key.

        ``has_more`` says whether more is stored behind that key.
        """
        group = self._groups.get(name) or self._open(name)
        group.last = up_to or group.last
        alive = self._alive
        before = group.count
        self._add_all(name, group, [each for each in placed if each[0] not in alive])
        self._read_to(name, group, before, has_more=has_more)

    def known_up_to(self, name: str) -> bytes | None:
        """Return the key up to which all entries of a group are here, or `None` if it is unknown.

        ``b""`` means that all its entries are here.
        """
        group = self._groups.get(name)
        if group is None or not group.more:
            return None if group is None else b""
        return group.last or None

    def is_fed(self, name: str) -> bool:
        """Return whether a group needs no more entries: it is held up and has some in memory."""
        return name in self._held_up and name not in self._hungry

    def groups_with_more(self, groups_max: int) -> list[str]:
        """Return groups of which more is stored; those with no entry in memory come first."""
        hungry, held_up = self._hungry, self._held_up
        fed: Iterable[str] = (n for n in self._more if n not in hungry and n not in held_up)
        return list(islice(chain(self._hungry, fed), groups_max))

    def begin_round(self) -> None:
        """Begin a new round of reading, from the first stored group on."""
        self.round_is_whole, self.round_has_passed = True, False

    def end_round(self) -> bool:
        """End the round of reading; return whether it missed no group but those held up."""
        self.cursor = b""
        self.knows_what_goes = self.round_is_whole
        self.knows_all_groups = self.round_is_whole and not self.round_has_passed
        return self.round_is_whole

    def passes(self, name: str) -> bool:
        """Return whether the round may pass over a group, which is held up and not known."""
        if name not in self._held_up or name in self._groups:
            return False
        self.round_has_passed = True
        return True

    def has_room_for(self, name: str) -> bool:
        """Return whether a group can be taken in, and make room if need be.

        Room is made by forgetting a group that has no entry here; another round finds it again.
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
        """Forget all that is known of a group."""
        group = self._groups.pop(name)
        for key, _, entry in group.queued():
            del self._alive[key]
            self._on_left_out(key, entry)
        self._sizes.changed(name, group.count, 0)
        self._hungry.pop(name, None)
        self._more.pop(name, None)
        self._misses_a_group(name)

    def _read_to(self, name: str, group: Group, before: int, *, has_more: bool) -> None:
        """Note that a group was read up to its ``last``; it had ``before`` entries here before."""
        group.more = has_more
        self._more.pop(name, None)
        if has_more:
            self._more[name] = None  # behind those that were read earlier
        self._counted(name, group, before)

    def _counted(self, name: str, group: Group, before: int) -> None:
        """Put a group into the right sets after its number of entries has changed from ``before``.

        A group is known while it has entries here or more stored; with the latter only it is
        *hungry*. All sets of groups follow from that, and are changed here.
        """
        self._sizes.changed(name, before, group.count)
        if group.count:
            self._hungry.pop(name, None)
        elif group.more:
            self._hungry[name] = None
        else:
            self._hungry.pop(name, None)
            self._groups.pop(name, None)

    def _open(self, name: str) -> Group:
        self._groups[name] = group = Group(self._alive, in_one_lane=self.ordered and name != "")
        return group

    def _add(self, group: Group, key: bytes, entry: Entry) -> None:
        self.additions += 1
        queued = (key, self.additions, entry)
        self._alive[key] = entry
        group.push(queued)
        # Only a power of two matters; nothing changes at other numbers.
        if not group.count & (group.count - 1):
            self._counted(entry.group, group, group.count - 1)
        for rotation in self._rotations.values():
            rotation.added(queued)

    def _add_all(self, name: str, group: Group, placed: list[Placed]) -> None:
        """Add entries of one group, in the order of their keys."""
        number = self.additions
        queued = [(key, number + n, entry) for n, (key, entry) in enumerate(placed, 1)]
        self.additions += len(placed)
        self._alive.update(placed)
        group.push_all(queued)
        for rotation in self._rotations.values():
            rotation.added_all(name, queued)

    def make_room(self) -> bool:
        """Let groups that are held up give up entries until half of the room is free.

        Return whether less was free before, and that much is free now.

        Groups with many entries here give some up first, then those with one do. Otherwise other
        groups might wait for room as long as these are held up.
        """
        before, most = len(self._alive), self.size // 2
        while len(self._alive) > most:
            name = self._sizes.largest()
            if self._groups[name].count < 2:
                return self._forget_held_up(most)
            if name not in self._held_up:
                return False
            self._give_up()
        return before > most

    def _forget_held_up(self, most: int) -> bool:
        """Forget groups held up until ``most`` entries are here; return whether it worked.

        The names of these groups stay held up. A limit applies to the number of names.
        """
        if len(self._held_up) < HELD_UP_PER_ENTRY * self.size:
            for name in [each for each in self._held_up if each in self._groups]:
                if len(self._alive) <= most:
                    break
                self._forget_group(name)
        return len(self._alive) <= most

    def _give_up(self) -> None:
        """Let the largest group give up the last half of its entries here."""
        name = self._sizes.largest()
        group = self._groups[name]
        queued, before = group.queued(), group.count
        kept, given_up = queued[: len(queued) // 2], queued[len(queued) // 2 :]
        for key, _, entry in given_up:
            del self._alive[key]
            self._on_left_out(key, entry)
        group.keep(kept)
        group.last = kept[-1][0] if kept else b""
        self._read_to(name, group, before, has_more=True)

    # --- removals

    def discard(self, key: bytes) -> None:
        """Remove an entry that is not ready any more."""
        entry = self._alive.get(key)
        if entry is not None:
            self._remove(key, entry.group, self._groups[entry.group])
            self.additions += self.ordered  # the entry behind it may be taken now

    def _remove(self, key: bytes, name: str, group: Group) -> None:
        del self._alive[key]
        group.count -= 1
        if not group.count & (group.count + 1):  # one less than a power of two
            self._counted(name, group, group.count + 1)
        if self.ordered and group.count:  # another entry is its first now
            for rotation in self._rotations.values():
                rotation.join(name)

    def take(self, wants: Wish | None, may: Callable[[str, Entry], bool] | None) -> Placed | None:
        """Take the entry whose turn it is, or return `None` if there is none.

        Args:
            wants: what the consumer takes; ``None``: any entry.
            may: whether a group may fire; if not, it is held up until it is freed. ``None``: any
                may.
        """
        rotation = self._rotations.get(wants) or self._begin_rotation(wants)
        if rotation.has_untested:
            rotation.catch_up()
        line, held_up, groups = rotation.line, self._held_up, self._groups
        while line:
            name = line[0]
            group = groups.get(name)
            if group is None or name in held_up:
                found = None
            else:
                found = (
                    group.first(rotation.kinds)
                    if rotation.is_plain
                    else rotation.first(name, group)
                )
            if group is None or found is None:
                rotation.leave()
                if name in held_up:
                    held_up[name][rotation] = None
                continue
            key, _, entry = found
            if may is not None and not may(name, entry):
                rotation.leave()
                held_up[name] = {rotation: None}
                continue
            line.rotate(-1)
            self._remove(key, name, group)
            self.additions += self.ordered  # others may want the entry behind it
            return key, entry
        return None

    def run(self, entries_max: int) -> list[Queued]:
        """Return the entries that a consumer of any entries would take next, one after the other.

        Nothing is returned if groups take turns, or if kinds do.
        """
        rotation = self._rotations.get(None) or self._begin_rotation(None)
        name = rotation.line[0] if len(rotation.line) == 1 and not self.ordered else None
        group = None if name is None or name in self._held_up else self._groups.get(name)
        return [] if group is None else group.run(entries_max)

    def take_run(self, run: list[Queued]) -> None:
        """Take the entries of a run, or the first of them."""
        name = run[0][2].group
        group = self._groups[name]
        before = group.count
        for key, _, _ in run:
            del self._alive[key]
        group.pop_run(len(run))
        self._counted(name, group, before)

    def _begin_rotation(self, wants: Wish | None) -> Rotation:
        """Begin a rotation, to which all entries here are new."""
        if len(self._rotations) >= ORDERS_KEPT:
            del self._rotations[next(iter(self._rotations))]
        self._rotations[wants] = rotation = Rotation(wants, self._alive, ordered=self.ordered)
        for group in self._groups.values():
            for queued in group.queued():
                rotation.added(queued)
        return rotation

    @property
    def entries(self) -> Collection[Entry]:
        """Return the entries, those first that came first."""
        return self._alive.values()

    def oldest(self) -> int:
        """Return when the oldest entry here became due; 0: there is none."""
        return min((entry.due for entry in self._alive.values()), default=0)

    # --- groups that are held up

    def hold_up(self, name: str) -> None:
        """Hold up a group that may not fire; ``additions`` rises when it is freed."""
        self._held_up.setdefault(name, {})

    def watch(self, name: str) -> None:
        """Watch a group of which a consumer wants a message behind the head.

        ``additions`` rises when the head may have gone. Other consumers may take the head
        meanwhile.
        """
        self._watched.add(name)

    def free(self, name: str) -> None:
        """Free a group, which may fire again."""
        waiting = self._held_up.pop(name, None)
        if waiting is not None and name not in self._groups and not self.knows_all_groups:
            self._misses_a_group(name)
        for rotation in waiting or ():
            rotation.join(name)
        if waiting is not None or name in self._watched:
            self._watched.discard(name)
            self.additions += 1

    def free_all(self) -> None:
        """Free all groups."""
        for name in [*self._held_up, *self._watched]:
            self.free(name)
