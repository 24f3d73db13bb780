"""Accounting: sums of metrics for a key and for every prefix of it.

::

    Accounting(a/b/c, {n: 1})      sums of      a, a/b, a/b/c     n + 1 each
                                   posted to            a/b/c     n + 1

A reader of sums reads one record. Each *posted* amount is noted once more, at the key itself. The
sum of a prefix is the total that was posted to it and to all keys below it. An audit recounts it.
"""

from __future__ import annotations

import msgspec

from postroom.errors import Overflow, shorten
from postroom.kv import keys
from postroom.limits import INTEGER_MAX, INTEGER_MIN
from postroom.ranges.checks import check_accounting, check_metrics, prefixes
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.requests import Accounting

_encode = msgspec.msgpack.encode
_sums = msgspec.msgpack.Decoder(dict[str, int])


def accounting(ctx: Evaluation, request: Accounting) -> None:
    """Evaluate ``Accounting``.

    Raises:
        Overflow: a sum would leave the range of 64 bits.
        ValueTooLarge: it has too many prefixes or metrics.
    """
    check_accounting(request.key, request.deltas)
    found = summed_prefixes(request)
    if is_posted(request, found):
        add_posted(ctx, found[-1], request.deltas)
    for prefix in found:
        add_metrics(ctx, prefix, request.deltas)


def summed_prefixes(request: Accounting) -> list[bytes]:
    """Return the prefixes to whose sums a request adds, in the order of their keys."""
    found = prefixes(request.key)
    if request.within is None:
        return found
    start, end = request.within
    return [each for each in found if start <= each and (end is None or each < end)]


def is_posted(request: Accounting, sums: list[bytes]) -> bool:
    """Return whether the key itself, which is its own longest prefix, is among the ``sums``."""
    return bool(sums) and (request.within is None or sums[-1] == prefixes(request.key)[-1])


def add_metrics(ctx: Evaluation, prefix: bytes, deltas: dict[str, int]) -> None:
    """Add ``deltas`` to the sums of one prefix.

    Raises:
        Overflow: a sum would leave the range of 64 bits.
        ValueTooLarge: the prefix would have too many metrics.
    """
    key = keys.accounting_key(prefix)
    sums = read_metrics(ctx.get(key))
    ctx.steps += 1 + len(deltas) // 4 + len(sums) // 16
    for metric, delta in deltas.items():
        total = sums.get(metric, 0) + delta
        if not INTEGER_MIN <= total <= INTEGER_MAX:
            raise Overflow(
                f"the metric {metric!r} of {shorten(prefix)} would leave the range of a 64-bit "
                "signed integer; nothing was changed"
            )
        sums[metric] = total
    check_metrics(prefix, len(sums))
    ctx.writes[key] = stored = _encode(sums)
    ctx.grow(len(key) + len(stored))


def add_posted(ctx: Evaluation, prefix: bytes, deltas: dict[str, int]) -> None:
    """Note that ``deltas`` are added to ``prefix`` itself.

    The notes of a prefix may leave 64 bits where its sum does not: they count modulo 2 ** 64.
    """
    key = keys.posted_key(prefix)
    posted = read_metrics(ctx.get(key))
    ctx.steps += 1 + len(deltas) // 4 + len(posted) // 16
    for metric, delta in deltas.items():
        total = posted.get(metric, 0) + delta - INTEGER_MIN
        posted[metric] = total % (1 << 64) + INTEGER_MIN
    ctx.writes[key] = stored = _encode(posted)
    ctx.grow(len(key) + len(stored))


def read_metrics(stored: bytes | None) -> dict[str, int]:
    """Return the sums in an accounting record."""
    return {} if stored is None else _sums.decode(stored)
