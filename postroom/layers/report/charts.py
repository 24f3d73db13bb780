"""Charts as SVG, made by hand, and tables: lines over periods, for a page that needs nothing else.

Lines can be told apart without colours (dashes, dots) and read aloud: there is a title and a
description, and a figure has the numbers as a table. Colours and text follow the page's style, by
classes ``s0`` to ``s5``: light and dark are the page's matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 10, 26
STYLES: Final = 6
"""The number of lines that can be told apart."""
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 5")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS: Final = (
    1, 2, 5, 10, 20, 30, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 20 * _MINUTE,
    30 * _MINUTE, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 4 * _DAY,
    7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY,
)  # fmt: skip
"""The seconds between two ticks."""
_TICKS: Final = 8
_DOTS_MAX: Final = 60
_FEW: Final = 2
"""A chart of this many periods, or fewer, is shown as numbers at once."""
_CHARACTERS_MAX: Final = 300

Point = tuple[int, float]
"""The number of a period since 1970, and a value."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        name: what it is.
        points: in the order of their periods. Where some are missing, the line is interrupted.
    """

    name: str
    points: Sequence[Point]


def period_text(number: int, seconds: int) -> str:
    """Return when a period of so many seconds begins, as a person reads it (UTC)."""
    text = "%Y-%m-%d %H:%M" if seconds >= _MINUTE else "%Y-%m-%d %H:%M:%S"
    return datetime.fromtimestamp(number * seconds, UTC).strftime(text)


def seconds_text(seconds: float) -> str:
    """Return a length of time in two or three digits."""
    text = ""
    for factor, least, unit in ((1e3, 0.0, "ms"), (1.0, 1.0, "s"), (1 / 60, 120.0, "min"),
                                (1 / 3600, 7200.0, "h"), (1 / 86400, 172_800.0, "d")):  # fmt: skip
        if seconds >= least:
            text = f"{_short(seconds * factor)} {unit}"
    return text


def number_text(number: float) -> str:
    """Return a number with separators."""
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else _short(number)


def _short(number: float) -> str:
    """Return a number in three significant digits."""
    if number >= 100 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.3g}"


def chart(
    title: str,
    lines: Sequence[ChartLine],
    *,
    seconds: int = _HOUR,
    label: Callable[[float], str] = number_text,
    logarithmic: bool = False,
) -> str:
    """Return a chart as an SVG element.

    Args:
        title: what it shows.
        lines: ``STYLES`` at most are drawn.
        seconds: of a period.
        label: writes a value.
        logarithmic: each step up is ten times as much.
    """
    drawn = [line for line in lines if line.points][:STYLES]
    if not drawn:
        return f'<p class="none">{escape(title)}: there is nothing to show.</p>'
    points = [point for line in drawn for point in line.points]
    first, last = min(each for each, _ in points), max(each for each, _ in points)
    values = [value for _, value in points]
    scale = _Logarithmic(values) if logarithmic else _Linear(values)
    box = _Box(first, max(last, first + 1), scale, seconds)
    name = "c" + "".join(letter for letter in title.lower() if letter.isalnum())
    drawing = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">',
        f'<title id="{name}-t">{escape(title)}</title>',
        f'<desc id="{name}-d">{escape(_description(drawn, label, seconds))}</desc>',
    ]
    drawing += _grid(box, label)
    for number, line in enumerate(drawn):
        drawing += _drawn(box, number, line, label)
    drawing.append("</svg>")
    return "\n".join(drawing)


def legend(lines: Sequence[ChartLine]) -> str:
    """Return the legend of the lines, as HTML."""
    items = []
    for number, line in enumerate([line for line in lines if line.points][:STYLES]):
        dash = _DASHES[number]
        items.append(
            f'<li><svg class="key" viewBox="0 0 28 8" aria-hidden="true">'
            f'<path class="s{number}" d="M1 4H27" stroke-dasharray="{dash}"/></svg>'
            f"{escape(line.name)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def figure(
    title: str,
    lines: Sequence[ChartLine],
    seconds: int,
    label: Callable[[float], str],
    *,
    logarithmic: bool = False,
) -> str:
    """Return a chart with its legend and its numbers, as HTML; its arguments are a chart's."""
    drawn = chart(title, lines, seconds=seconds, label=label, logarithmic=logarithmic)
    if not drawn.startswith("<svg"):
        return drawn
    periods = sorted({each for line in lines for each, _ in line.points}, reverse=True)
    known = [dict(line.points) for line in lines]
    rows = [
        [
            period_text(each, seconds),
            *(label(by[each]) if each in by else "" for by in known),
        ]
        for each in periods
    ]
    opened = " open" if len(periods) <= _FEW else ""
    numbers = table(title, ["from", *(line.name for line in lines)], rows)
    return (
        f"<figure>\n<figcaption>{text(title)}</figcaption>\n{legend(lines)}\n"
        f'<div class="plot" tabindex="0" role="group" aria-label="{text(title)}">{drawn}</div>\n'
        f"<details{opened}><summary>The numbers</summary>{numbers}</details>\n</figure>"
    )


def table(
    caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]], *, texts: int = 1
) -> str:
    """Return a table, as HTML; the first ``texts`` columns are text, the others numbers."""

    def cells(row: Iterable[str], kind: str) -> str:
        made = []
        for number, each in enumerate(row):
            style = ' class="text"' if number < texts else ""
            scope = ' scope="col"' if kind == "th" else ""
            made.append(f"<{kind}{scope}{style}>{text(each)}</{kind}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "\n".join(cells(row, "td") for row in rows)
    return (
        f'<div class="wide"><table><caption>{text(caption)}</caption>'
        f"<thead>{cells(heads, 'th')}</thead>\n<tbody>{body}</tbody></table></div>"
    )


def text(given: str) -> str:
    """Return text of a user as HTML that shows it literally."""
    return escape(shown(given))


def shown(given: str) -> str:
    """Return text without signs that change what is around it, such as the direction of writing."""
    printed = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in given
    )
    if len(printed) > _CHARACTERS_MAX:
        printed = printed[: _CHARACTERS_MAX - 1] + "…"
    return printed


# --- scales ---------------------------------------------------------------------------------------


class _Linear:
    """A linear scale from zero to a round number."""

    def __init__(self, values: Sequence[float]) -> None:
        highest = max(*values, 0.0) or 1.0
        step = 10.0 ** math.floor(math.log10(highest / 4)) if highest > 0 else 1.0
        for factor in (1, 2, 5, 10):
            if highest / (step * factor) <= 5:
                step *= factor
                break
        self.top = step * math.ceil(highest / step - 1e-9)
        self.ticks = [step * number for number in range(round(self.top / step) + 1)]

    def share(self, value: float) -> float:
        """Return the place of a value, from 0 to 1."""
        return max(value, 0.0) / self.top


class _Logarithmic:
    """A logarithmic scale between two powers of ten; a millisecond is the least value."""

    LEAST: Final = 1e-3

    def __init__(self, values: Sequence[float]) -> None:
        low = math.floor(math.log10(max(min(values), self.LEAST)) + 1e-9)
        high = math.ceil(math.log10(max(*values, self.LEAST)) - 1e-9)
        self.low, self.high = low, max(high, low + 1)
        self.ticks = [10.0**power for power in range(self.low, self.high + 1)]

    def share(self, value: float) -> float:
        """Return the place of a value, from 0 to 1."""
        power = math.log10(max(value, self.LEAST))
        return min(max((power - self.low) / (self.high - self.low), 0.0), 1.0)


class _Box:
    """The coordinates of periods and values on the drawing."""

    def __init__(self, first: int, last: int, scale: _Linear | _Logarithmic, seconds: int) -> None:
        self.first, self.last, self.scale, self.seconds = first, last, scale, seconds

    def x(self, number: float) -> float:
        """Return the coordinate of a period."""
        inside = WIDTH - _LEFT - _RIGHT
        return round(_LEFT + inside * (number - self.first) / (self.last - self.first), 1)

    def y(self, value: float) -> float:
        """Return the coordinate of a value."""
        inside = HEIGHT - _TOP - _BOTTOM
        return round(HEIGHT - _BOTTOM - inside * self.scale.share(value), 1)


# --- pieces ---------------------------------------------------------------------------------------


def _grid(box: _Box, label: Callable[[float], str]) -> list[str]:
    drawing = []
    for tick in box.scale.ticks:
        y = box.y(tick)
        drawing.append(f'<path class="grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}"/>')
        drawing.append(
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(label(tick))}</text>'
        )
    first, last = box.first * box.seconds, box.last * box.seconds
    step = next((each for each in _STEPS if (last - first) / each <= _TICKS), last - first)
    step = max(step, box.seconds)
    for moment in range(-(-first // step) * step, last + 1, step):
        text, x = (
            datetime.fromtimestamp(moment, UTC).strftime(_moment_format(step)),
            box.x(moment / box.seconds),
        )
        anchor = "middle" if _LEFT + 36 < x < WIDTH - 40 else (
            "start" if x <= _LEFT + 36 else "end")  # fmt: skip
        drawing.append(f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}">{text}</text>')
    return drawing


def _moment_format(step: int) -> str:
    """Return the format of moments that are this many seconds apart."""
    if step >= _HOUR:
        return "%m-%d" if step >= _DAY else "%m-%d %H:00"
    return "%H:%M" if step >= _MINUTE else "%H:%M:%S"


def _drawn(box: _Box, number: int, line: ChartLine, label: Callable[[float], str]) -> list[str]:
    path, before = [], None
    for period, value in line.points:
        move = "L" if before is not None and period - before <= 1 else "M"
        path.append(f"{move}{box.x(period)} {box.y(value)}")
        before = period
    drawing = [
        f'<path class="s{number}" stroke-dasharray="{_DASHES[number]}" d="{"".join(path)}"/>'
    ]
    if len(line.points) <= _DOTS_MAX:
        for period, value in line.points:
            told = f"{line.name}, {period_text(period, box.seconds)}: {label(value)}"
            drawing.append(
                f'<circle class="d{number}" cx="{box.x(period)}" cy="{box.y(value)}" r="3">'
                f"<title>{escape(told)}</title></circle>"
            )
    return drawing


def _description(lines: Sequence[ChartLine], label: Callable[[float], str], seconds: int) -> str:
    """Return the highest and the newest values of the lines, in words."""
    told = []
    for line in lines:
        highest, value = max(line.points, key=lambda point: point[1])
        newest, last = line.points[-1]
        told.append(
            f"{line.name}: at most {label(value)} ({period_text(highest, seconds)}), at last "
            f"{label(last)} ({period_text(newest, seconds)})"
        )
    return "; ".join(told)
