"""Chunks of sorted names and values that go straight to their places: their checks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from postroom.errors import Invalid
from postroom.ranges.evaluation import Evaluation


def check_sorted(what: str, names: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Check that a chunk has names in rising order, and a value for each.

    Raises:
        Invalid: it has not.
    """
    if not names or len(names) != len(values):
        raise Invalid(f"a chunk has {what}, and a value for each; nothing was changed")
    if not all(one < other for one, other in pairwise(names)):
        raise Invalid(f"the {what} of a chunk rise; nothing was changed: sort them first")


def is_empty(ctx: Evaluation, lower: bytes, upper: bytes) -> bool:
    """Return whether there is nothing in a span of engine keys: one question for a chunk."""
    ctx.steps += 1
    return next(ctx.iterate(lower, upper), None) is None
