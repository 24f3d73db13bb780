"""A number and what is counted, as people read it: ``1 node``, ``3 nodes``, ``10,000 keys``."""

from __future__ import annotations


def counted(number: int, what: str, plural: str = "") -> str:
    """Return ``number`` with ``what``, which is in the plural (``plural``, or an s) unless it is 1.

    Args:
        number: how many there are.
        what: one of them, with the words that follow a number.
        plural: some of them, where an s at the end does not make the plural.
    """
    return f"{number:,} {what if number == 1 else plural or what + 's'}"
