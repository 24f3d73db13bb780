"""The queues of a range by name: found, made, changed and dropped.

What is applied is in memory. A proposal that changes a definition reads from then on what is stored
in it, so a queue can be made and used in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.errors import Invalid
from postroom.messaging.queues.definitions import Changed, Definitions, no_such_queue
from postroom.messaging.queues.manager import Manager, Surroundings
from postroom.messaging.queues.requests import (
    CreateQueue,
    DropQueue,
    QueueDefinition,
    QueueSettings,
    UpdateQueue,
)
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry


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
        """
        manager = self.by_name.get(name)
        if manager is None:
            raise no_such_queue(name)
        return manager

    def find(self, ctx: Evaluation, name: str) -> tuple[Manager, QueueSettings]:
        """The queue of a name, as the requests before have left it.

        Raises:
            Invalid: there is none.
        """
        found = self.find_if_there(ctx, name)
        if found is None:
            raise no_such_queue(name)
        return found

    def find_if_there(self, ctx: Evaluation, name: str) -> tuple[Manager, QueueSettings] | None:
        """The same; ``None``: there is none."""
        made = ctx.scratch.get(Changed)
        if made is None:
            for reordered in self._reordered:  # by what never came about, or is applied now
                reordered.order_by(reordered.definition.settings)
            self._reordered.clear()
            manager = self.by_name.get(name)
            return None if manager is None else (manager, manager.definition.settings)
        definition = self.definitions.read(ctx, name)
        if definition is None:
            return None
        manager = self.by_name.get(name)
        if manager is None or manager.definition.number != definition.number:
            manager = made[definition.created_at]
        if manager.ordered != (definition.settings.order == "group"):
            manager.order_by(definition.settings)
            self._reordered.append(manager)
        return manager, definition.settings

    def _changes(self, ctx: Evaluation) -> dict[int, Manager]:
        """From now on this evaluation reads what is stored; answers the managers that it made."""
        made: dict[int, Manager] = ctx.scratch.setdefault(Changed, {})
        return made

    def _create(self, ctx: Evaluation, request: CreateQueue) -> None:
        definition = self.definitions.create(ctx, request)
        if definition is None:
            return
        manager = Manager(self._range_id, definition, self._around)
        manager.begin_empty()
        self._changes(ctx)[definition.created_at] = manager
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
        manager = self.by_name.get(definition.name)
        if manager is not None and manager.definition.number == definition.number:
            manager.change(definition)

    def _drop(self, ctx: Evaluation, request: DropQueue) -> None:
        definition = self.definitions.drop(ctx, request)
        self._changes(ctx)
        ctx.after.append(lambda: self._has_dropped(definition))

    def _has_dropped(self, definition: QueueDefinition) -> None:
        manager = self.by_name.get(definition.name)
        if manager is None or manager.definition.number != definition.number:
            return
        del self.by_name[definition.name]
        manager.definition = definition
        self.dropped[definition.number] = manager
        self._on_dropped(manager)
