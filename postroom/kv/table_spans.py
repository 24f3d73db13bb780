"""The part of a table file that lies within a span of keys, guessed from its first and last key."""

from __future__ import annotations

from typing import Final

_DIGITS: Final = 8
"""Bytes of a key that are looked at, behind what the file's keys have in common."""


def covered(span: tuple[bytes, bytes], first: bytes, last: bytes) -> float:
    """Return about which part of a table file from ``first`` to ``last`` lies within ``span``.

    Keys are taken for fractions, and spread evenly: a guess, but of two files a level at most.
    """
    if span[0] <= first and last < span[1]:
        return 1.0
    if last < span[0] or span[1] <= first:
        return 0.0
    shared = _shared(first, last)
    begin, end = _fraction(first, shared), _fraction(last, shared)
    if begin == end:
        return 1.0
    lower = begin if span[0] <= first else _fraction(span[0], shared)
    upper = end if last < span[1] else _fraction(span[1], shared)
    return (upper - lower) / (end - begin)


def _fraction(key: bytes, skip: int) -> float:
    """``key`` as a number from 0 to 1, its first ``skip`` bytes left out."""
    return int.from_bytes(key[skip : skip + _DIGITS].ljust(_DIGITS, b"\x00")) / (1 << 8 * _DIGITS)


def _shared(first: bytes, last: bytes) -> int:
    """Return how many bytes two keys begin with alike."""
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return at
    return min(len(first), len(last))
