"""Bytes on a terminal: how keys and values are read from arguments and printed.

* **Text** (the default): UTF-8. What is no UTF-8 is printed as ``\\xff``. Where a line is a record
  (scan, peek, ...), control characters are printed escaped too: a value cannot fake a line.
* **Hexadecimal** (``--hex``): every byte exactly, in both directions.
* **JSON** (``--json``): one object a line; its keys and values are in the chosen notation.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

import typer

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


@dataclass(frozen=True, slots=True)
class Notation:
    """How bytes are written: as text or as hexadecimal digits."""

    hexadecimal: bool = False

    def read(self, argument: str) -> bytes:
        """The bytes that an argument of the command line stands for."""
        if not self.hexadecimal:
            return os.fsencode(argument)  # also arguments that are no UTF-8, byte for byte
        try:
            return bytes.fromhex(argument)
        except ValueError:
            raise typer.BadParameter(f"{argument!r} is not hexadecimal (--hex)") from None

    def write(self, data: bytes) -> str:
        """``data`` as it is printed when it is alone, or inside JSON."""
        return data.hex() if self.hexadecimal else data.decode("utf-8", "backslashreplace")

    def write_field(self, data: bytes) -> str:
        """``data`` as a part of a line."""
        return self.write(data).translate(_ESCAPES)


def print_line(*fields: str) -> None:
    """Print a record: its fields, with tabs between them."""
    # Not typer.echo, which flushes every line: a scan may print millions.
    _write("\t".join(fields) + "\n")


def print_json(record: dict[str, object]) -> None:
    """Print a record as one JSON object on one line."""
    _write(json.dumps(record, ensure_ascii=False) + "\n")


def _write(line: str) -> None:
    try:
        sys.stdout.write(line)
    except UnicodeEncodeError:  # a terminal that is not UTF-8
        encoding = sys.stdout.encoding
        sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))
