"""The queues of a range by name: found, made, changed and dropped.

What is applied is in memory. A proposal that changes a definition reads from then on what is stored
in it, so a queue can be made and used in one transaction.

A queue that is damaged (:mod:`.damage`) has a name here and no manager: whoever asks for it is told
why. It can be dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from postroom.errors import Invalid
from postroom.messaging.queues.damage import QueueDamaged
from postroom.messaging.queues.definitions import (
    NOBODY_KNOWS,
    Changed,
    Definitions,
    no_such_queue,
)
from postroom.messaging.queues.manager import Manager, Surroundings
from postroom.messaging.queues.requests import (
    CreateQueue,
    DropQueue,
    QueueDefinition,
    QueueSettings,
    ToldQueue,
    UpdateQueue,
)
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry

_log: Final = logging.getLogger(__name__)


class Directory:
    """See the module.

    Args:
        range_id: whose.
        around: what managers are given.
        on_dropped: told which queue is gone.

    Attributes:
        definitions: as stored.
        by_name: the managers of the queues there are.
        dropped: by number, those of queues that are being emptied.
        damaged: by name, what is told of those that are set aside.
    """

    def __init__(
        self, range_id: int, around: Surroundings, on_dropped: Callable[[Manager], None]
    ) -> None:
        self._range_id = range_id
        self._around = around
        self._on_dropped = on_dropped
        self.definitions = Definitions(range_id)
        self.by_name: dict[str, Manager] = {}
        self.dropped: dict[int, Manager] = {}
        self.damaged: dict[str, str] = {}
        self._set_aside: dict[str, QueueDefinition] = {}
        self._logged: set[str] = set()
        self._reordered: list[Manager] = []

    def register(self, registry: Registry) -> None:
        """Adds the writes that change definitions to ``registry``."""
        registry.writes |= {
            CreateQueue: self._create,
            UpdateQueue: self._update,
            DropQueue: self._drop,
        }

    def known(self, name: str) -> Manager:
        """The queue of a name, as applied.

        Raises:
            Invalid: there is none.
            QueueDamaged: it is set aside.
        """
        manager = self.by_name.get(name)
        if manager is None:
            self._check_not_damaged(name, None)
            raise no_such_queue(name)
        return manager

    def all(self) -> list[QueueDefinition]:
        """Those there are, as applied; of those that are damaged, what is known."""
        found: list[QueueDefinition] = [manager.definition for manager in self.by_name.values()]
        for name, why in self.damaged.items():
            known = self._set_aside.get(name) or QueueDefinition(name, 0, 0, NOBODY_KNOWS)
            found.append(
                ToldQueue(
                    name, known.number, known.created_at, known.settings, known.paused, damaged=why
                )
            )
        return found

    # --- damaged

    def clear(self) -> None:
        """The lease is over."""
        self.by_name.clear()
        self.dropped.clear()
        self.damaged.clear()
        self._set_aside.clear()

    def set_aside(self, error: QueueDamaged, definition: QueueDefinition | None) -> None:
        """A queue cannot be used, as long as this lease of the range lasts. It is logged once.

        Args:
            error: names it, and says why.
            definition: if that is known.
        """
        name = error.queue
        self.damaged[name] = str(error)
        if definition is not None:
            self._set_aside[name] = definition
        if name not in self._logged:
            self._logged.add(name)
            _log.error("a queue is set aside: %s", error)

    def is_sound(self, name: str) -> None:
        """It is used, or gone: should it be damaged later, that is news."""
        self._logged.discard(name)

    def find(self, ctx: Evaluation, name: str) -> tuple[Manager, QueueSettings]:
        """The queue of a name, as the requests before have left it.

        Raises:
            Invalid: there is none.
            QueueDamaged: it is set aside.
        """
        found = self.find_if_there(ctx, name)
        if found is None:
            raise no_such_queue(name)
        return found

    def find_if_there(self, ctx: Evaluation, name: str) -> tuple[Manager, QueueSettings] | None:
        """The same; ``None``: there is none.

        Raises:
            QueueDamaged: it is set aside.
        """
        made = ctx.scratch.get(Changed)
        if made is None:
            for reordered in self._reordered:  # by what never came about, or is applied now
                reordered.order_by(reordered.definition.settings)
            self._reordered.clear()
            manager = self.by_name.get(name)
            if manager is None:
                self._check_not_damaged(name, None)
                return None
            return manager, manager.definition.settings
        definition = self.definitions.read(ctx, name)
        if definition is None:
            return None
        self._check_not_damaged(name, definition)
        manager = self.by_name.get(name)
        if manager is None or manager.definition.number != definition.number:
            manager = made[definition.number]
        if manager.ordered != (definition.settings.order == "group"):
            manager.order_by(definition.settings)
            self._reordered.append(manager)
        return manager, definition.settings

    def _check_not_damaged(self, name: str, definition: QueueDefinition | None) -> None:
        why, known = self.damaged.get(name), self._set_aside.get(name)
        if why is None:
            return
        if definition is None or (known is not None and known.number == definition.number):
            raise QueueDamaged(name, why)
        # Else it was dropped, and made anew, in the same proposal.

    def _changes(self, ctx: Evaluation) -> dict[int, Manager]:
        """From now on this evaluation reads what is stored; answers the managers that it made, by
        number: one transaction may make several. (What was refused leaves a number to the next.)
        """
        made: dict[int, Manager] = ctx.scratch.setdefault(Changed, {})
        return made

    def _create(self, ctx: Evaluation, request: CreateQueue) -> None:
        definition = self.definitions.create(ctx, request)
        if definition is None:
            self._check_not_damaged(request.name, self.definitions.read(ctx, request.name))
            return
        manager = Manager(self._range_id, definition, self._around)
        manager.begin_empty()
        self._changes(ctx)[definition.number] = manager
        ctx.after.append(lambda: self.by_name.update({definition.name: manager}))

    def _update(self, ctx: Evaluation, request: UpdateQueue) -> None:
        manager, before = self.find(ctx, request.name)
        definition = self.definitions.update(ctx, request)
        is_empty = not (manager.counted.live or any(note[0] is manager for note in ctx.notes))
        if definition.settings.order != before.order and not is_empty:
            raise Invalid(
                f"the queue {request.name!r} was not changed: its order can change only while no "
                "message is scheduled, ready or leased"
            )
        self._changes(ctx)
        ctx.after.append(lambda: self._changed(definition))

    def _changed(self, definition: QueueDefinition) -> None:
        manager, known = self.by_name.get(definition.name), self._set_aside.get(definition.name)
        if known is not None and known.number == definition.number:
            self._set_aside[definition.name] = definition
        if manager is not None and manager.definition.number == definition.number:
            manager.change(definition)

    def _drop(self, ctx: Evaluation, request: DropQueue) -> None:
        manager = self.by_name.get(request.name)
        known = self._set_aside.get(request.name) if manager is None else manager.definition
        dropped = self.definitions.drop(ctx, request, known)
        self._changes(ctx)
        ctx.after.append(lambda: self._has_dropped(request.name, dropped))

    def _has_dropped(self, name: str, dropped: list[QueueDefinition]) -> None:
        is_damaged = self.damaged.pop(name, None) is not None
        if is_damaged:
            self._set_aside.pop(name, None)
            self._logged.discard(name)
        for definition in dropped:
            manager = self.by_name.get(name)
            if is_damaged:
                manager = Manager(self._range_id, definition, self._around)
                manager.names_all = False  # what is damaged may name others than it should
            elif manager is None or manager.definition.number != definition.number:
                return
            else:
                del self.by_name[name]
            manager.definition = definition
            self.dropped[definition.number] = manager
            self._on_dropped(manager)
