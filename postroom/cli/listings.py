"""Records that belong together: a table with headers on a terminal, else lines with tabs.

A record takes one line of the table. Ids, keys and times are never cut or folded, because they are
copied into the next command. Texts (payloads, reasons) share the room that is left, and are cut
with ``…``; a pipe and ``--json`` have all of them. If a terminal is too narrow, lines are longer
than it, and the terminal folds them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, Self

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from postroom.cli.output import print_line

_TEXT_CELLS_MIN: Final = 20
"""The least number of cells to which a text is cut."""
_GAP_CELLS: Final = 3
"""The number of cells between two columns of a table."""


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
            table.add_column(header, width=width, no_wrap=True, overflow="ellipsis")
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
