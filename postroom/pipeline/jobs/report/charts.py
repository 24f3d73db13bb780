"""Charts as SVG, made by hand: lines over hours, for a page that needs nothing but itself.

What a line is can be seen without colours (dashes, dots) and heard (a title, a description; the
page has the numbers as a table besides). Colours and text follow the page's style, by classes
``s0`` to ``s5``, so that light and dark are the page's matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 10, 26
STYLES: Final = 6
"""So many lines can be told apart."""
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 5")
_STEPS: Final = (1, 2, 3, 6, 12, 24, 48, 24 * 4, 24 * 7, 24 * 14, 24 * 30, 24 * 90, 24 * 365)
_TICKS: Final = 8
_DOTS_MAX: Final = 60

Point = tuple[int, float]
"""The number of an hour since 1970, and a value."""


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: what it is.
        points: in the order of their hours. Where hours are missing, the line is interrupted.
    """

    name: str
    points: Sequence[Point]


def hour_text(hour: int) -> str:
    """An hour as a person reads it (UTC)."""
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%d %H:00")


def seconds_text(seconds: float) -> str:
    """A length of time in two or three digits."""
    text = ""
    for factor, least, unit in ((1e3, 0.0, "ms"), (1.0, 1.0, "s"), (1 / 60, 120.0, "min"),
                                (1 / 3600, 7200.0, "h"), (1 / 86400, 172_800.0, "d")):  # fmt: skip
        if seconds >= least:
            text = f"{_short(seconds * factor)} {unit}"
    return text


def number_text(number: float) -> str:
    """A number with separators."""
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else _short(number)


def _short(number: float) -> str:
    """Three digits that count."""
    if number >= 100 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.3g}"


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    label: Callable[[float], str] = number_text,
    logarithmic: bool = False,
) -> str:
    """An SVG element.

    Args:
        title: what it shows.
        lines: ``STYLES`` at most are drawn.
        label: writes a value.
        logarithmic: each step up is ten times as much.
    """
    drawn = [line for line in lines if line.points][:STYLES]
    if not drawn:
        return f'<p class="none">{escape(title)}: there is nothing to show.</p>'
    points = [point for line in drawn for point in line.points]
    first, last = min(hour for hour, _ in points), max(hour for hour, _ in points)
    values = [value for _, value in points]
    scale = _Logarithmic(values) if logarithmic else _Linear(values)
    box = _Box(first, max(last, first + 1), scale)
    name = "c" + "".join(letter for letter in title.lower() if letter.isalnum())
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">',
        f'<title id="{name}-t">{escape(title)}</title>',
        f'<desc id="{name}-d">{escape(_told(drawn, label))}</desc>',
    ]
    parts += _grid(box, label)
    for number, line in enumerate(drawn):
        parts += _drawn(box, number, line, label)
    parts.append("</svg>")
    return "\n".join(parts)


def legend(lines: Sequence[Line]) -> str:
    """What the lines are, as HTML."""
    items = []
    for number, line in enumerate([line for line in lines if line.points][:STYLES]):
        dash = _DASHES[number]
        items.append(
            f'<li><svg class="key" viewBox="0 0 28 8" aria-hidden="true">'
            f'<path class="s{number}" d="M1 4H27" stroke-dasharray="{dash}"/></svg>'
            f"{escape(line.name)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


# --- scales ---------------------------------------------------------------------------------------


class _Linear:
    """From zero to a round number."""

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
        """Where a value is, from 0 to 1."""
        return max(value, 0.0) / self.top


class _Logarithmic:
    """From a power of ten to another one; what is less than a millisecond counts as one."""

    LEAST: Final = 1e-3

    def __init__(self, values: Sequence[float]) -> None:
        low = math.floor(math.log10(max(min(values), self.LEAST)) + 1e-9)
        high = math.ceil(math.log10(max(*values, self.LEAST)) - 1e-9)
        self.low, self.high = low, max(high, low + 1)
        self.ticks = [10.0**power for power in range(self.low, self.high + 1)]

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        power = math.log10(max(value, self.LEAST))
        return min(max((power - self.low) / (self.high - self.low), 0.0), 1.0)


class _Box:
    """Where hours and values are on the drawing."""

    def __init__(self, first: int, last: int, scale: _Linear | _Logarithmic) -> None:
        self.first, self.last, self.scale = first, last, scale

    def x(self, hour: float) -> float:
        """Of an hour."""
        inside = WIDTH - _LEFT - _RIGHT
        return round(_LEFT + inside * (hour - self.first) / (self.last - self.first), 1)

    def y(self, value: float) -> float:
        """Of a value."""
        inside = HEIGHT - _TOP - _BOTTOM
        return round(HEIGHT - _BOTTOM - inside * self.scale.share(value), 1)


# --- parts ----------------------------------------------------------------------------------------


def _grid(box: _Box, label: Callable[[float], str]) -> list[str]:
    parts = []
    for tick in box.scale.ticks:
        y = box.y(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(label(tick))}</text>'
        )
    hours = box.last - box.first
    step = next((each for each in _STEPS if hours / each <= _TICKS), hours)
    hour = -(-box.first // step) * step
    while hour <= box.last:
        moment = datetime.fromtimestamp(hour * 3600, UTC)
        text = moment.strftime("%m-%d" if step >= 24 else "%m-%d %H:00")
        anchor = "middle" if _LEFT + 36 < box.x(hour) < WIDTH - 40 else (
            "start" if box.x(hour) <= _LEFT + 36 else "end")  # fmt: skip
        parts.append(
            f'<text x="{box.x(hour)}" y="{HEIGHT - 8}" text-anchor="{anchor}">{text}</text>'
        )
        hour += step
    return parts


def _drawn(box: _Box, number: int, line: Line, label: Callable[[float], str]) -> list[str]:
    path, before = [], None
    for hour, value in line.points:
        move = "L" if before is not None and hour - before <= 1 else "M"
        path.append(f"{move}{box.x(hour)} {box.y(value)}")
        before = hour
    parts = [f'<path class="s{number}" stroke-dasharray="{_DASHES[number]}" d="{"".join(path)}"/>']
    if len(line.points) <= _DOTS_MAX:
        for hour, value in line.points:
            told = f"{line.name}, {hour_text(hour)}: {label(value)}"
            parts.append(
                f'<circle class="d{number}" cx="{box.x(hour)}" cy="{box.y(value)}" r="3">'
                f"<title>{escape(told)}</title></circle>"
            )
    return parts


def _told(lines: Sequence[Line], label: Callable[[float], str]) -> str:
    """What the lines show, in words."""
    told = []
    for line in lines:
        hour, value = max(line.points, key=lambda point: point[1])
        last_hour, last = line.points[-1]
        told.append(
            f"{line.name}: at most {label(value)} ({hour_text(hour)}), at last {label(last)} "
            f"({hour_text(last_hour)})"
        )
    return "; ".join(told)


__all__ = ["STYLES", "Line", "chart", "hour_text", "legend", "number_text", "seconds_text"]
