"""Mutations of the usual way, each of which the comparison with the general way must find.

``python -m tests.messaging.usual_mutations`` replaces one piece of the module at a time, and plays
histories of :mod:`.test_usual_way` until both ways differ. It says which mutation was not found.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from postroom.messaging import setup, usual
from tests.messaging.test_usual_way import Both, Step, play_all, steps

HISTORIES_MAX: Final = 6000
NOTHING: Final = "pass"

MUTATIONS: Final[tuple[tuple[str, str], ...]] = (
    ("if applied.pending_messages and self", "if False and self"),
    ("if applied.pending_updates:", "if False:"),
    ("parts.committer.may_have_to_wait or ", ""),
    ("if batch.notes or self._queues", "if self._queues"),
    (" or self._steps.is_wanted", ""),
    (" or not share.is_all", ""),
    ("                manager.was_asked_for = True", "                pass"),
    ("batch.after.append(partial(self._arrived, batch.first))", NOTHING),
    ("if feed.floor is not None:", "if False:"),
    ("if not (sent or deferred or batch.reaped):", "if not sent:"),
    ('batch.after.append(partial(setattr, conservation, "applied", after))', NOTHING),
    ("parts.clock.take(usual._timestamp)", NOTHING),
    ("parts.committer.latest.update(usual.latest)", NOTHING),
    ("                self._claims.gone(key, ids)", "                pass"),
    ("self._claims.arriving(usual.first)", NOTHING),
    ("value = self.staged.get(key, _UNKNOWN)", "value = _UNKNOWN"),
    (" or call.cancelled:", ":"),
    ("timestamp += 1\n            self.steps", "self.steps"),
    ("if request.spans or len(", "if len("),
    ("if known is not None:", "if False:"),
    ("if age > age_max or", "if"),
    ("            check_reads(self, request)", "            pass"),
    ("self.staged[record] = self._stamp", NOTHING),
    ("self.garbage.append(record)", NOTHING),
    ("            self.last_commit = self._timestamp\n        self._res", "        self._res"),
    ("if latest is not None and number <= latest:", "if False:"),
    ("        self.latest[client] = number", "        pass"),
    ("return self.get(record) if request.began < committer.remembers_from else", "return"),
    ("self._delete(write.key)", NOTHING),
    ("versions.INTEGER_KIND if write.integer else", "versions.VALUE_KIND if write.integer else"),
    ("if write.integer and len(write.value) != INTEGER.size:", "if False:"),
    ("staged[head] if head in staged else self", "self"),
    ("if not INTEGER_MIN <= number <= INTEGER_MAX:", "if False:"),
    ("if old is not None and old[0] == versions.INTEGER:", "if old is not None:"),
    ("number = _added(old, by, key, packed=packed)", "number = by"),
    ("(before := old[1:9]) != stamp:", "(before := old[1:9]):"),
    ("self.staged[history] = old", NOTHING),
    ("self.garbage.append(history)\n        self.staged[head]", "self.staged[head]"),
    ("if versions.payload(old) is None:", "if old is None:"),
    ("self.garbage.append(head)", NOTHING),
    ("        if write.due or (\n", "        if (\n"),
    ("ordinal.to_bytes(4", "(1).to_bytes(4"),
    ("if write.due or type(update) is not Increment:", "if write.due:"),
    ("if write.due or type(update) is not Increment:", "if type(update) is not Increment:"),
    ("elif kind is EnqueueInQueue:\n                ordinal += 1", "elif kind is EnqueueInQueue:"),
    ("manager is None or write.due or", "manager is None or"),
    ("write.due or write.group:", "write.due:"),
    (" <= records.PAYLOAD_KEPT_BYTES", " >= 0"),
    ("if write.headers is not None and self._checked_headers(write):", "if False:"),
    ("if body_key in staged or self", "if self"),
    ("return self._parts.cache.get_once(body_key) is not None", "return False"),
    ("        if write.key != id_:\n", "        if False:\n"),
    ("self.get(body_key) is not None\n            or", ""),
    ("            or self.get(layout.pointer_key(write.kind, id_)) is not None\n", ""),
    ("        if key != id_:\n", "        if False:\n"),
    ("write.payload, write.headers, now, priority", "write.payload, None, now, priority"),
    ("if write.key == id_ and self._queues.made_up.is_new(id_, self):", "if write.key == id_:"),
    ("            self._queues.made_up.placed(key)\n", "            pass\n"),
    ("ended.append(self._acknowledge(write))", "self._acknowledge(write)"),
    ("self._stamp + _encode(answers)", "self._stamp"),
    ("leases is None or finish_together(", "finish_together("),
    ("return self.staged.get(key, _UNKNOWN) is None", "return False"),
    ("return self.staged.get(key) is not None", "return False"),
    ("ctx.scratch = self.scratch", NOTHING),
    ("None if key in self.reaped else ", ""),
    ("if mail is None or found is None:", "if mail is None:"),
    ("if not (found.is_gapless and found.following):", "if False:"),
    ("            oldest = found.following\n", ""),
    ("self.staged[history] = _encode(messages)", NOTHING),
    ("self.garbage.append(history)\n        self.reaped", "self.reaped"),
    ("self.messages_reaped += len(messages)", NOTHING),
    ("self.after.append(partial(self._claims.taken, key, ids))", NOTHING),
    ("arrivals[key].append(arrived)", "arrivals[key] = [arrived]"),
    ("number += mail.messages", NOTHING),
    ("oldest = min(oldest, mail.oldest)", NOTHING),
    ("by + request.by, packed or", "request.by, packed or"),
    ("packed or request.packed", "request.packed"),
    ("self._timestamp += 1\n        self._stamp", "self._stamp"),
    ("        self.last_commit = self._timestamp\n\n", "\n"),
    ("        if garbage:\n", "        if False:\n"),
    ("        if not results:\n", "        if False:\n"),
    ("ctx.garbage, ctx.notes, ctx.after = self.garbage", "_, ctx.notes, ctx.after = self.garbage"),
    ("ctx.sent, ctx.deferred = self.sent, self.deferred", NOTHING),
    ('ctx.tally = {"reaped": self.messages_reaped}', NOTHING),
    ("        if usual.notes:\n", "        if False:\n"),
    ("or not staged:", ":"),
)  # fmt: skip


def broken(old: str, new: str) -> types.ModuleType:
    """Return the module with one piece of it replaced.

    Raises:
        ValueError: it has no such piece.
    """
    source = Path(usual.__file__).read_text()
    if old not in source:
        raise ValueError(f"the module has no {old!r} any more")
    module = types.ModuleType(usual.__name__)
    module.__file__ = usual.__file__
    exec(compile(source.replace(old, new, 1), usual.__file__, "exec"), vars(module))
    return module


def is_found(old: str, new: str) -> bool:
    """Return whether both ways differ in some history when one piece is replaced."""

    @seed(1)
    @settings(
        max_examples=HISTORIES_MAX, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(steps, min_size=40, max_size=80))
    def play(history: list[Step]) -> None:
        play_all(Both(), history)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "UsualEvaluator", broken(old, new).UsualEvaluator)
        try:
            play()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return True
    return False


def main() -> int:
    """Try all mutations; return 1 if one was not found."""
    missed = 0
    for old, new in MUTATIONS:
        found = is_found(old, new)
        missed += not found
        sys.stdout.write(f"{'found ' if found else 'MISSED'} {old!r} -> {new!r}\n")
        sys.stdout.flush()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
