"""The writes of queues in transactions over several ranges, carried out once these have committed.

::

    Prepare ─▶ trial: the attempt holds its message, the id is free ─▶ answer
       │           meanwhile other transactions wait, and the services of the queue leave it alone
    Resolve ─▶ carried out at its own time; or left out: ignored in the trial, or the queue is gone

Nothing may refuse a write that has committed. A queue may have been dropped since the trial, or set
aside, and then there is nothing to carry out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any, Final

from postroom.errors import Error, Unavailable
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.enqueueing import IGNORED, Enqueueing
from postroom.messaging.queues.requests import (
    Acknowledge,
    CancelMessages,
    EnqueueInQueue,
    Extend,
    KeepResult,
    RejectMessages,
    WhenDone,
)
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry

_SETTLED: Final = (Acknowledge, RejectMessages, Extend, KeepResult, CancelMessages)

_log: Final = logging.getLogger(__name__)


def register(directory: Directory, enqueueing: Enqueueing, registry: Registry) -> None:
    """Register the evaluators; those of the writes themselves are registered already."""
    evaluators: dict[type, Callable[[Evaluation, Any], Any]] = {
        kind: registry.writes[kind] for kind in _SETTLED
    }
    evaluators[EnqueueInQueue] = enqueueing.enqueue_committed
    evaluators[WhenDone] = enqueueing.when_done_committed
    for kind, evaluate in evaluators.items():
        registry.committed[kind] = partial(_carry_out, directory, evaluate)


def _carry_out(
    directory: Directory,
    evaluate: Callable[[Evaluation, Any], Any],
    ctx: Evaluation,
    write: Any,
    answer: Any,
) -> Generator[None, None, None]:
    """Carry out a write of a transaction that has committed.

    Args:
        directory: the queues of the range.
        evaluate: the evaluator of the write.
        ctx: the proposal.
        write: the write.
        answer: the answer of its trial.
    """
    if answer == IGNORED:
        return
    ctx.begin_step()
    try:
        if directory.find_if_there(ctx, write.queue) is None:
            return
        evaluating = evaluate(ctx, write)
        if type(evaluating) is GeneratorType:
            yield from evaluating
    except Unavailable:
        raise  # the range has yet to learn of the queue
    except Error as error:  # it is damaged, or was made anew meanwhile
        ctx.undo_step()
        _log.error("a committed change of the queue %r is left out: %s", write.queue, error)
