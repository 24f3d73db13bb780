"""Sizes in bytes, as people write them: ``128MiB``, ``1GiB``, ``500kB``, ``134217728``."""

from __future__ import annotations

import re
from typing import Final

import typer

_UNITS: Final = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip
_SIZE: Final = re.compile(r"([0-9]{1,15}) ?([A-Za-z]*)")


def as_bytes(text: str, least: int, option: str) -> int:
    """Return how many bytes ``text`` means.

    Raises:
        typer.BadParameter: it is no size, or less than ``least`` bytes.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2].lower())
    if found is None or unit is None:
        raise typer.BadParameter(
            f"{text!r} is no size: write 128MiB, 1GiB or a number of bytes", param_hint=option
        )
    size = int(found[1]) * unit
    if size < least:
        raise typer.BadParameter(
            f"{text!r} is {size} bytes, it must be {least} at least ({least >> 20}MiB)",
            param_hint=option,
        )
    return size
