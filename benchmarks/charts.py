"""Charts of ``docs/performance.md``, drawn from the tables of that page.

``python -m benchmarks.charts`` (``make drawings``) writes ``docs/charts/*.svg``. The tables are the
only place of the numbers: a chart names the heading below which its table is, the columns, and the
rows that it shows. A test sees that charts are up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "performance.md"
CHARTS: Final = DOCS / "charts"
STYLE: Final = DOCS / "assets" / "drawing.css"

WIDTH: Final = 800
LABELS_WIDTH: Final = 390
NUMBERS_WIDTH: Final = 70
BAR_HEIGHT: Final = 13
ROW_GAP: Final = 11
HEAD_HEIGHT: Final = 30
LABEL_CHARACTERS_MAX: Final = 64

_CELL: Final = re.compile(r"^\D{0,2}([\d,]*\.?\d+)(?:[^(]*\(([\d,.]+) to ([\d,.]+)\))?")


class Value(NamedTuple):
    """A measured number, and the range of its runs; without one, the number itself."""

    middle: float
    low: float
    high: float


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        heading: the text of the heading above it.
        columns: the texts of its head.
        rows: its cells.
    """

    heading: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Chart:
    """A chart with horizontal bars.

    Attributes:
        name: the name of its file.
        title: what it shows, for readers who do not see it.
        heading: the heading of its table.
        columns: the numbers of the columns that are series, by the names of these.
        unit: shows only rows with this text in their second cell; empty: all rows.
        only: shows only rows whose label contains one of these texts; empty: all rows.
        without: leaves out rows whose label contains one of these texts.
        base: the value at which bars begin.
        goals: the number of the column with the goal of each series; empty: there are none.
        is_stacked: whether the bars of a row follow each other.
    """

    name: str
    title: str
    heading: str
    columns: dict[str, int]
    unit: str = ""
    only: Sequence[str] = ()
    without: Sequence[str] = ()
    base: float = 0.0
    goals: Sequence[int] = ()
    is_stacked: bool = False


@dataclass
class Row:
    """A row of a chart: its label, and a value and a goal for each series."""

    label: str
    values: list[Value | None] = field(default_factory=list)
    goals: list[Value | None] = field(default_factory=list)


ALL: Final = (
    Chart(
        "sqlite",
        "Outbox transactions a second, beside SQLite: on a disk and in memory",
        "The embedded store",
        {"on a disk": 2, "in memory": 3},
        unit="/s",
        only=("outbox transaction",),
    ),
    Chart(
        "etcd",
        "Operations a second on three nodes, beside etcd: on a disk and in memory",
        "The cluster",
        {"on a disk": 2, "in memory": 3},
        unit="/s",
        only=("64 in flight",),
        without=("linearizable get",),  # five times as many: other bars would be short
    ),
    Chart(
        "growth",
        "Rates with ten million keys, divided by those with a hundred thousand",
        "With ever more of everything",
        {"last / first": -1},
        base=1.0,
        only=("last / first",),
    ),
    Chart(
        "queues",
        "Messages of queues a second, embedded and on three nodes; the marks are the goals",
        "Queues",
        {"embedded": 2, "on three nodes": 4},
        unit="messages/s",
        goals=(3, 5),
    ),
    Chart(
        "processors",
        "Processor time of an operation in a cluster, in microseconds",
        "Where the time of a cluster goes",
        {"client": 2, "leader": 3, "follower": 4, "other follower": 5},
        is_stacked=True,
        only=("64 in flight",),
    ),
)


def tables(page: str) -> Iterator[Table]:
    """Return the tables of a page, in order."""
    heading, lines = "", [*page.splitlines(), ""]
    block: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if len(block) > 2:  # the head, the line below it, and rows
            yield Table(heading, block[0], block[2:])
        block = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def value(cell: str) -> Value | None:
    """Return the number of a cell; ``None``: there is none."""
    found = _CELL.match(cell.replace("**", ""))
    if not found:
        return None
    middle, low, high = (float((each or found[1]).replace(",", "")) for each in found.groups())
    return Value(middle, low, high)


def rows_of(chart: Chart, page: str) -> list[Row]:
    """Return the rows of a chart.

    Raises:
        LookupError: the page has no such table, or nothing in it.
    """
    found = [
        each
        for each in tables(page)
        if each.heading == chart.heading and len(each.columns) > max(chart.columns.values())
    ]
    if not found:
        raise LookupError(f"no table of {PAGE.name} is for the chart {chart.name}")
    rows = (
        [*_transposed(chart, found)] if -1 in chart.columns.values() else [*_plain(chart, found[0])]
    )
    if not rows:
        raise LookupError(f"no row of {PAGE.name} is for the chart {chart.name}")
    return rows


def _plain(chart: Chart, table: Table) -> Iterator[Row]:
    label = medium = ""
    for cells in table.rows:
        label = cells[0] or label
        medium = "" if chart.unit or len(cells) < 2 or value(cells[1]) else cells[1]
        if chart.unit and cells[1] != chart.unit:
            continue
        if chart.only and not any(each in label for each in chart.only):
            continue
        if any(each in label for each in chart.without):
            continue
        row = Row(_short(f"{label}, {medium}" if medium else label))
        row.values = [value(cells[each]) for each in chart.columns.values()]
        row.goals = [value(cells[each]) for each in chart.goals]
        yield row


def _transposed(chart: Chart, found: list[Table]) -> Iterator[Row]:
    """Return a row for each column of the one row that the chart shows."""
    for table in found:
        for cells in table.rows:
            if cells[0] in chart.only:
                for name, cell in zip(table.columns[1:], cells[1:], strict=True):
                    if value(cell) is not None:
                        yield Row(_short(name), [value(cell)])


def _short(label: str) -> str:
    text = re.sub(r" \*$|`", "", label.removeprefix("peer: "))
    if len(text) > LABEL_CHARACTERS_MAX:
        text = re.sub(r" \([^)]*\)", "", text).replace("with a remote client", "and a client")
    text = text.replace("the outbox transaction by hand", "by hand")
    return text if len(text) <= LABEL_CHARACTERS_MAX else text[: LABEL_CHARACTERS_MAX - 1] + "…"


# --- drawing


def draw(chart: Chart, page: str) -> str:
    """Return a chart as SVG."""
    rows = rows_of(chart, page)
    scale = _Scale(chart, rows)
    lines = 1 if chart.is_stacked else len(chart.columns)
    row_height = lines * BAR_HEIGHT + ROW_GAP
    height = HEAD_HEIGHT + len(rows) * row_height + 24
    parts = [*_legend(chart), *scale.grid(height - 20)]
    for number, row in enumerate(rows):
        y = HEAD_HEIGHT + number * row_height + ROW_GAP / 2
        parts.append(_text(LABELS_WIDTH - 10, y + lines * BAR_HEIGHT / 2 + 4, row.label, "end"))
        parts += _stack(row, y, scale) if chart.is_stacked else _bars(row, y, scale)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing chart" role="img" '
        f'aria-label="{escape(chart.title)}" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" font-size="12">\n'
        f"<style>\n{STYLE.read_text()}</style>\n{body}\n</svg>\n"
    )


class _Scale:
    """The scale of the values of a chart.

    Args:
        chart: the chart.
        rows: its rows.
    """

    def __init__(self, chart: Chart, rows: list[Row]) -> None:
        self.base = chart.base
        known = [[each for each in row.values + row.goals if each] for row in rows]
        if chart.is_stacked:
            highest = max(sum(each.middle for each in row) for row in known)
        else:
            highest = max(each.high for row in known for each in row)
        self.step = _step(highest)
        self.highest = -(-highest // self.step) * self.step

    def x(self, number: float) -> float:
        """Return the place of a number."""
        return LABELS_WIDTH + (WIDTH - LABELS_WIDTH - NUMBERS_WIDTH) * number / self.highest

    def grid(self, bottom: float) -> Iterator[str]:
        """Return the lines of the grid and their numbers."""
        for number in range(round(self.highest / self.step) + 1):
            at = number * self.step
            kind = "axis" if at == self.base else "grid"
            x = self.x(at)
            yield (
                f'<line class="{kind}" x1="{x:.1f}" y1="{HEAD_HEIGHT - 4}" x2="{x:.1f}" '
                f'y2="{bottom:.1f}"/>'
            )
            yield _text(x, bottom + 14, f"{at:,g}", "middle", "small")


def _step(highest: float) -> float:
    """Return the distance of the lines of the grid: 1, 2 or 5 times a power of ten."""
    powers = [factor * 10.0**power for power in range(-2, 8) for factor in (1, 2, 5)]
    return next(each for each in powers if highest / each <= 6)


def _bars(row: Row, y: float, scale: _Scale) -> Iterator[str]:
    for number, found in enumerate(row.values):
        top = y + number * BAR_HEIGHT
        if found is None:
            continue
        left, right = sorted((scale.x(scale.base), scale.x(found.middle)))
        kind = "bar second" if number else "bar"
        yield _bar(kind, left, top, right)
        if found.high > found.low:
            yield _line(scale.x(found.low), scale.x(found.high), top + BAR_HEIGHT / 2)
        goal = row.goals[number] if row.goals else None
        end = max(scale.x(found.high), right, scale.x(goal.middle) if goal else 0.0) + 6
        yield _text(end, top + BAR_HEIGHT - 3, f"{found.middle:,g}", "start", "small")
        if goal is not None:
            x = scale.x(goal.middle)
            yield (
                f'<path class="axis" fill="none" stroke-width="2.5" '
                f'd="M{x:.1f} {top - 1:.1f}v{BAR_HEIGHT:.1f}"/>'
            )


def _stack(row: Row, y: float, scale: _Scale) -> Iterator[str]:
    sums = [0.0]
    for found in row.values:
        sums.append(sums[-1] + (found.middle if found else 0.0))
    for number, (left, right) in enumerate(pairwise(sums)):
        if right > left:
            yield _bar(f"bar part{number}", scale.x(left), y, scale.x(right))
    yield _text(scale.x(sums[-1]) + 6, y + BAR_HEIGHT - 3, f"{sums[-1]:,.0f}", "start", "small")


def _legend(chart: Chart) -> Iterator[str]:
    x = float(LABELS_WIDTH)
    for number, name in enumerate(chart.columns if len(chart.columns) > 1 else ()):
        kind = f"bar part{number}" if chart.is_stacked else "bar second" if number else "bar"
        yield _bar(kind, x, 6, x + 12)
        yield _text(x + 17, 16, name)
        x += 34 + 7 * len(name)


def _bar(kind: str, left: float, top: float, right: float) -> str:
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 0.5):.1f}" '
        f'height="{BAR_HEIGHT - 2}"/>'
    )


def _line(left: float, right: float, y: float) -> str:
    return (
        f'<path class="range" fill="none" d="M{left:.1f} {y - 3:.1f}v5M{left:.1f} {y - 0.5:.1f}'
        f'H{right:.1f}M{right:.1f} {y - 3:.1f}v5"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> None:
    """Draw all charts."""
    page = PAGE.read_text()
    CHARTS.mkdir(exist_ok=True)
    for chart in ALL:
        (CHARTS / f"{chart.name}.svg").write_text(draw(chart, page))
        print(f"{chart.name}.svg")


if __name__ == "__main__":
    main()
