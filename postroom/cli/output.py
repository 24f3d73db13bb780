"""Output of commands, and the notations of their arguments: keys and values, records, sizes.

Keys and values are bytes. They are read and printed in one of these notations:

* **Text** (the default): UTF-8. Other bytes are printed as ``\xff``. In lines that are records
  (scan, peek, ...), control characters are printed escaped too: a value cannot fake a line. A
  counter, stored by ``increment``, is printed as a number.
* **Hexadecimal** (``--hex``, ``--hex-key``, ``--hex-value``): every byte exactly, for input and
  output.
* **Integers** (``--int``): values are numbers. A given number becomes a counter (in a message, 8
  bytes), and 8 bytes are printed as the number that they are.
* **JSON** (``--json``): one object a line, and nothing is lost:

  ========================  ====================================================================
  in the store              in JSON
  ========================  ====================================================================
  bytes that are UTF-8      that text, ``"paid"``
  any other bytes           their hexadecimal digits, ``{"hex": "00ff"}``
  what increment stored     a number
  nothing (a deletion)      ``null``
  a header that is no       ``{"float": "nan"}``, ``{"float": "inf"}``, ``{"float": "-inf"}``
  number in JSON
  ========================  ====================================================================

  With a hexadecimal notation all keys, or values, are strings of digits; counters too.

Records that belong together are a table with headers on a terminal, else lines with tabs. A record
takes one line of the table. Ids, keys and times are never cut or folded, because they are
copied into the next command. Texts (payloads, reasons) share the room that is left, and are cut
with ``…``; a pipe and ``--json`` have all of them. If a terminal is too narrow, lines are longer
than it, and the terminal folds them.

Sizes in bytes are written as people do: ``128MiB``, ``1GiB``, ``500kB``, ``134217728``.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

import postroom
from postroom.counted import counted
from postroom.kv.clock import Timestamp
from postroom.limits import SPLIT_BYTES_MIN, VALUE_BYTES_MAX
from postroom.ranges.evaluators import INTEGER

STANDARD_INPUT: Final = "-"
"""The argument that stands for the content of standard input."""

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


_KEYS: Final = frozenset({"key", "source_key"})
_VALUES: Final = frozenset({"value", "payload", "message"})
"""The attributes that are keys, and those that are values."""


class AsStored:
    """The codec of the command line: values are bytes, and a counter is a number."""

    def encode(self, value: Any, /) -> bytes:
        """Return ``value``, which is bytes."""
        packed: bytes = value
        return packed

    def decode(self, data: bytes, /) -> bytes:
        """Return ``data``."""
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """The notation of keys and values, and whether records are JSON.

    Attributes:
        hex_keys, hex_values: as hexadecimal digits, not as text.
        integers: values are numbers.
        as_json: one object a line.
    """

    hex_keys: bool = False
    hex_values: bool = False
    integers: bool = False
    as_json: bool = False

    # --- arguments

    def read_key(self, argument: str) -> bytes:
        """Return the key that an argument of the command line stands for."""
        return _from_hex(argument) if self.hex_keys else os.fsencode(argument)

    def read_value(self, argument: str) -> bytes | int:
        """Return the value that an argument stands for; ``-`` stands for standard input."""
        # arguments in other encodings than UTF-8 are taken byte for byte
        given = _standard_input() if argument == STANDARD_INPUT else os.fsencode(argument)
        if self.integers:
            return _integer(os.fsdecode(given))
        return _from_hex(os.fsdecode(given)) if self.hex_values else given

    def read_payload(self, argument: str) -> bytes:
        """Return the payload of a message that an argument stands for."""
        value = self.read_value(argument)
        return INTEGER.pack(value) if isinstance(value, int) else value

    # --- lines

    def key(self, key: bytes) -> str:
        """Return a key as a part of a line."""
        return _text(key, hexadecimal=self.hex_keys).translate(_ESCAPES)

    def value(self, value: bytes | int) -> str:
        """Return a value as a part of a line."""
        return self.lone_value(value).translate(_ESCAPES)

    def lone_value(self, value: bytes | int) -> str:
        """Return a value as it is printed alone."""
        number = self._number(value)
        if number is not None:
            return str(number)
        return _text(_bytes(value), hexadecimal=self.hex_values)

    # --- JSON

    def json_key(self, key: bytes) -> object:
        """Return a key for JSON."""
        return key.hex() if self.hex_keys else _json_bytes(key)

    def json_value(self, value: bytes | int | None) -> object:
        """Return a value for JSON."""
        if value is None:
            return None
        number = self._number(value)
        if number is not None:
            return number
        return _bytes(value).hex() if self.hex_values else _json_bytes(_bytes(value))

    def record(self, of: object, *names: str) -> dict[str, object]:
        """Return attributes of an object for JSON."""
        return {name: self._attribute(name, getattr(of, name)) for name in names}

    def _attribute(self, name: str, value: Any) -> object:
        if name in _KEYS:
            return self.json_key(value)
        if name in _VALUES:
            return self.json_value(value)
        if name == "headers":
            return json_headers(value)
        if isinstance(value, Timestamp):
            return value.datetime.isoformat()
        return value.hex() if isinstance(value, bytes) else value

    def _number(self, value: bytes | int) -> int | None:
        """Return the value if it is shown as a number, else ``None``."""
        if isinstance(value, int):
            return None if self.hex_values else value
        return postroom.integer(value) if self.integers and len(value) == INTEGER.size else None


def field(text: str) -> str:
    """Return text as a part of a line."""
    return text.translate(_ESCAPES)


def json_headers(headers: dict[str, Any]) -> dict[str, object]:
    """Return the headers of a message for JSON."""
    return {name: _json_header(content) for name, content in headers.items()}


def _json_header(content: Any) -> object:
    match content:
        case bytes():
            return _json_bytes(content)
        case float() if not math.isfinite(content):
            return {"float": str(content)}
    return content


def _json_bytes(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _text(data: bytes, *, hexadecimal: bool) -> str:
    return data.hex() if hexadecimal else data.decode("utf-8", "backslashreplace")


def _bytes(value: bytes | int) -> bytes:
    return INTEGER.pack(value) if isinstance(value, int) else value


def _from_hex(argument: str) -> bytes:
    try:
        return bytes.fromhex(argument)
    except ValueError:
        raise typer.BadParameter(
            f"{argument!r} is not hexadecimal (--hex, --hex-key, --hex-value)"
        ) from None


def _integer(argument: str) -> int:
    try:
        number = int(argument)
    except ValueError:
        number = 1 << 64
    if not -(2**63) <= number < 2**63:
        raise typer.BadParameter(f"{argument!r} is no 64-bit integer (--int)")
    return number


def _standard_input() -> bytes:
    """Return the content of standard input, cut where it is longer than any value may be."""
    return sys.stdin.buffer.read(2 * VALUE_BYTES_MAX + 2)  # two digits a byte, a newline, one more


def print_line(*fields: str) -> None:
    """Print a record: its fields, with tabs between them."""
    # Not typer.echo, which flushes every line: a scan may print millions.
    _write("\t".join(fields) + "\n")


def print_json(record: dict[str, object]) -> None:
    """Print a record as one JSON object on one line."""
    _write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def _write(line: str) -> None:
    try:
        sys.stdout.write(line)
    except UnicodeEncodeError:  # a terminal that is not UTF-8
        encoding = sys.stdout.encoding
        sys.stdout.write(line.encode(encoding, "backslashreplace").decode(encoding))


def confirmed(question: str) -> bool:
    """Return whether a person says yes. Without a person there is no answer, which means no.

    Raises:
        KeyboardInterrupt: the person leaves with Ctrl-C or Ctrl-D.
    """
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise KeyboardInterrupt from None
        return False


_TEXT_CELLS_MIN: Final = 20
"""The least number of cells to which a text is cut."""
_GAP_CELLS: Final = 3
"""The number of cells between two columns of a table."""
_NUMBERS: Final = frozenset(
    {"attempts", "bytes", "dead", "generation", "leased", "load", "messages", "ready", "scheduled"}
)
"""The headers of the columns of numbers, which end below each other."""


class Listing:
    """The printer of records: a table, or lines.

    Use it as a context manager: the table is printed at the end.

    Args:
        headers: of the columns, only for the terminal.
        texts: those of the headers whose fields may be cut.
    """

    def __init__(self, *headers: str, texts: Sequence[str] = ()) -> None:
        self._headers = headers
        self._texts = [at for at, header in enumerate(headers) if header in texts]
        self._records: list[tuple[str, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._records and kind is None:
            self._print()

    def add(self, *fields: str) -> None:
        """Print a record, or keep it for the table."""
        if sys.stdout.isatty():
            self._records.append(fields)
        else:
            print_line(*fields)

    def _print(self) -> None:
        room = Console().width
        widths = self._widths(room)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for header, width in zip(self._headers, widths, strict=True):
            side: JustifyMethod = "right" if header in _NUMBERS else "left"
            table.add_column(header, width=width, justify=side, no_wrap=True, overflow="ellipsis")
        for record in self._records:
            table.add_row(*map(Text, record))
        Console(width=max(room, _total(widths))).print(table)

    def _widths(self, room: int) -> list[int]:
        """Return the cells of each column on a terminal with this room."""
        rows = [self._headers, *self._records]
        widths = [
            max(cell_len(row[at]) for row in rows if at < len(row))
            for at in range(len(self._headers))
        ]
        left = room - _total(widths) + sum(widths[at] for at in self._texts)
        # The narrowest text comes first: the room that it leaves goes to the others.
        for done, at in enumerate(sorted(self._texts, key=widths.__getitem__)):
            share = left // (len(self._texts) - done)
            widths[at] = min(widths[at], max(share, _TEXT_CELLS_MIN))
            left -= widths[at]
        return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP_CELLS * len(widths)


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
            f"{text!r} is {counted(size, 'byte')}; the least is {least:,} ({least >> 20}MiB)",
            param_hint=option,
        )
    return size


def as_split_bytes(text: str, option: str = "--split-bytes") -> int:
    """Return how many bytes ``text`` means, from which ranges split; 0: never."""
    size = as_bytes(text, 0, option)
    return size and as_bytes(text, SPLIT_BYTES_MIN, option)
