"""The logs of a soak's processes, in which nothing may have failed but by the soak's own faults.

A service that fails begins again, and a node goes on. The clients may not notice, so the logs tell:
each record of an error, and each traceback, is wrong unless a fault of the soak explains it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""The format of a node's log."""
EXPLAINED: Final = (
    # Functions of workers raise, and clients of workers die.
    r"\w+ postroom\.worker: ",
    # Devices fill up (:mod:`tests.soak.trouble`).
    r"ERROR postroom\.server\.disk_guard: the device is full",
)
"""The beginnings of records that the faults of a soak explain, as regular expressions."""
SHOWN_MAX: Final = 5
LINES_MAX: Final = 40

_RECORD: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?=[A-Z]+ )")
_ERROR: Final = re.compile(r"ERROR |CRITICAL ")
_TRACEBACK: Final = "Traceback (most recent call last)"


class Logs(logging.Handler):
    """The logs of this process, from ``with`` on, and of others.

    Attributes:
        lines: what each process has written so far, by its name.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))
        self._own: list[str] = []
        self.lines: dict[str, Sequence[str]] = {"clients": self._own}

    def emit(self, record: logging.LogRecord) -> None:
        """Write down a record of this process."""
        self._own += self.format(record).splitlines()

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        logging.getLogger().removeHandler(self)

    def verdicts(self) -> list[str]:
        """Return the failures that are not explained, with the lines that tell them."""
        wrong = []
        for name, lines in self.lines.items():
            found = unexplained(lines)
            wrong += [f"the log of {name} has a failure:\n{each}" for each in found[:SHOWN_MAX]]
            if len(found) > SHOWN_MAX:
                wrong.append(f"the log of {name} has {len(found)} failures")
        return wrong


def unexplained(lines: Iterable[str]) -> list[str]:
    """Return the records of errors, and with tracebacks, that no fault of a soak explains."""
    explained = re.compile("|".join(EXPLAINED))
    found = []
    for record in _records(lines):
        began = _RECORD.match(record[0])
        said = record[0][began.end() :] if began else ""
        if explained.match(said):
            continue
        if _ERROR.match(said) or any(_TRACEBACK in line for line in record):
            found.append("\n".join(record[:LINES_MAX]))
    return found


def _records(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each record; those before the first one are a record, too."""
    record: list[str] = []
    for line in lines:
        if record and _RECORD.match(line):
            yield record
            record = []
        record.append(line)
    if record:
        yield record
