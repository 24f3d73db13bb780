"""The page of a report: one file, which needs no network and no script; and its contents.

The contents are plain numbers, and bounded, however large the store is. The table of measures may
have a row for each prefix and hour of years. The page has the busiest few of each, and the last
periods; it tells what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

from postroom.layers.report.charts import (
    ChartLine,
    figure,
    number_text,
    seconds_text,
    shown,
    table,
    text,
)
from postroom.layers.report.measures import INBOX, QUEUE, RETRIES, STAGES

PERIODS_MAX: Final = 24 * 14
ROWS_MAX: Final = 20
QUEUES_DRAWN: Final = 5


@dataclass(frozen=True)
class MessageTimes:
    """The times, or the attempts, that some messages took.

    Attributes:
        source: ``queue`` or ``inbox``.
        measure: which of the measures.
        period: the number of a period (:attr:`Content.period`) since 1970; ``None``: of all.
        queue, kind, prefix: of whom; ``None``: of all.
        messages: how many there were.
        mean, p50, p90, p99, max: in seconds, or attempts.
    """

    source: str
    measure: str
    period: int | None
    queue: str | None
    kind: str | None
    prefix: str | None
    messages: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Flow:
    """The messages that came and went in a period."""

    period: int
    enqueued: int
    done: int
    dead: int


@dataclass(frozen=True)
class Letters:
    """Dead messages: how many of a queue (``None``: in no queue), for one reason."""

    queue: str | None
    reason: str
    messages: int


@dataclass(frozen=True)
class Content:
    """The contents of the page: see the module.

    Attributes:
        store: which one, as a person says it.
        at: the timestamp at which it was read, in seconds since 1970.
        archive: where the archive is; ``None``: only the store was read.
        archived_until: up to when that reaches, in seconds since 1970.
        since: what ended before was left out (0: nothing was), in seconds since 1970.
        gaps: what may be missing, in words.
        overall, by_period, queues, kinds, prefixes: how long messages took, by level.
        flows: of each source, period by period; ``queue_flows``: of the busiest queues.
        totals: how many messages are in which state, by source; ``now``: also by queue, of those
            that have most.
        dead: how many are dead; ``letters``: why, the most frequent reasons.
        outbox: how many messages and updates wait in outboxes.
        period: how many seconds a period has.
    """

    store: str
    at: float
    archive: str | None = None
    archived_until: float = 0.0
    since: float = 0.0
    gaps: Sequence[str] = ()
    overall: Sequence[MessageTimes] = ()
    by_period: Sequence[MessageTimes] = ()
    queues: Sequence[MessageTimes] = ()
    kinds: Sequence[MessageTimes] = ()
    prefixes: Sequence[MessageTimes] = ()
    flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    queue_flows: Mapping[str, Sequence[Flow]] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    now: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    dead: int = 0
    letters: Sequence[Letters] = ()
    outbox: int = 0
    period: int = 3600


def whole_periods(flows: Iterable[Flow], until: int, periods_max: int = PERIODS_MAX) -> list[Flow]:
    """Return each period up to ``until``, empty ones too; the last ones of many."""
    known = {each.period: each for each in flows if each.period <= until}
    if not known:
        return []
    first = max(min(known), until - periods_max + 1)
    return [known.get(number, Flow(number, 0, 0, 0)) for number in range(first, until + 1)]


def backlog(here: int, flows: Sequence[Flow]) -> list[tuple[int, int]]:
    """Return the messages at the end of each period, counted back from today's.

    Args:
        here: how many are there after the last period.
        flows: of each period, without gaps.
    """
    found = []
    for flow in reversed(flows):
        found.append((flow.period, max(here, 0)))
        here += flow.done + flow.dead - flow.enqueued
    return found[::-1]


def living(now: Mapping[str, int]) -> int:
    """Return how many messages live, by the numbers of all states."""
    return sum(number for state, number in now.items() if state != "dead")


# --- the page -------------------------------------------------------------------------------------


_Labels: TypeAlias = Callable[[MessageTimes], list[str]]
_NONE: Final = "-"
_NAMES: Final = {QUEUE: "queues", INBOX: "inboxes"}

_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2024; --soft: #5b6570; --line: #d8dde3;
  --tile: #f4f6f8; --c0: #0b5cad; --c1: #b54708; --c2: #1a7f37; --c3: #8250df; --c4: #9a6700;
  --c5: #57606a; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e6e9ed; --soft: #9aa6b2;
  --line: #333b44; --tile: #1d232a; --c0: #6cb6ff; --c1: #ffa65c; --c2: #6bd68a; --c3: #d2a8ff;
  --c4: #e3b341; --c5: #a8b3be; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--back);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; }
p { margin: .25rem 0 .75rem; } .soft, caption { color: var(--soft); }
.warning { border-left: 4px solid var(--c1); padding: .25rem .75rem; background: var(--tile); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
  margin: 1rem 0; padding: 0; list-style: none; }
.tiles li { background: var(--tile); border-radius: 6px; padding: .6rem .8rem; }
.tiles b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; }
svg { display: block; width: 100%; height: auto; } .plot { overflow-x: auto; }
.plot svg { min-width: 36rem; } svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--line); fill: none; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .25rem 0; padding: 0;
  list-style: none; font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .4rem; } svg.key { width: 28px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, .text { text-align: left; overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid var(--line); } .wide { overflow-x: auto; }
main > p:last-child { margin-top: 2rem; }
details { margin: .25rem 0 1rem; } summary { cursor: pointer; color: var(--soft); }
""" + "\n".join(
    f".s{number} {{ stroke: var(--c{number}); fill: none; stroke-width: 2; }} "
    f".d{number} {{ fill: var(--c{number}); }}"
    for number in range(6)
)


def page(content: Content) -> str:
    """Return the page, as HTML."""
    sections = [
        _head(content), _tiles(content), _throughput(content), _backlog(content),
        _latencies(content), _tables(content), _dead(content),
        _closing(content),
    ]  # fmt: skip
    return "\n".join(each for each in sections if each) + "\n</main>\n</body>\n</html>\n"


def _head(content: Content) -> str:
    read = f"Read at {_moment(content.at)}"
    if content.archive is not None:
        read += f", with the archive {text(content.archive)}"
        read += (
            f", which reaches up to {_moment(content.archived_until)}"
            if content.archived_until else ", which is empty"
        )  # fmt: skip
    if content.since:
        read += f"; messages that ended before {_moment(content.since)} are left out"
    warnings = "".join(f'<p class="warning">{text(gap)}</p>' for gap in content.gaps)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>Postroom: {text(content.store)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>Messages of {text(content.store)}</h1>\n"
        f'<p class="soft">{read}. All times are UTC.</p>\n{warnings}'
    )


def _tiles(content: Content) -> str:
    """Return the few numbers that readers ask for first."""
    done = sum(each.messages for each in content.overall if each.measure == RETRIES)
    waits = sum(living(states) for states in content.totals.values())
    retried = sum(each.mean * each.messages for each in content.overall if each.measure == RETRIES)
    tiles = [
        ("done", number_text(done)),
        ("waiting, or at work", number_text(waits)),
        ("in outboxes", number_text(content.outbox)),
        ("dead letters", number_text(content.dead)),
        ("failed attempts, of those done", number_text(round(retried))),
    ]
    tiles += [
        (f"{each.measure}, p99", seconds_text(each.p99))
        for each in content.overall
        if each.measure in {"schedule to firing", "delivery to reap"}
    ]
    items = "".join(f"<li><b>{value}</b>{text(name)}</li>" for name, value in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _last(content: Content) -> int:
    return int(content.at // content.period)


def _length(content: Content) -> str:
    """Return how long a period is: ``hour``, ``10 minutes``."""
    number, unit = content.period, "second"
    for each, longer in ((60, "minute"), (3600, "hour")):
        if content.period >= each:
            number, unit = content.period // each, longer
    return unit if number == 1 else f"{number} {unit}s"


def _throughput(content: Content) -> str:
    sections = [
        "<h2>Throughput</h2>",
        f"<p>Messages that were enqueued, done and dead, each {_length(content)}. The last of them "
        "is not over.</p>",
    ]
    for source, found in content.flows.items():
        flows = whole_periods(found, _last(content))
        lines = [
            ChartLine("enqueued", [(each.period, each.enqueued) for each in flows]),
            ChartLine("done", [(each.period, each.done) for each in flows]),
        ]
        if any(each.dead for each in flows):
            lines.append(ChartLine("dead", [(each.period, each.dead) for each in flows]))
        sections.append(
            figure(
                f"Messages each {_length(content)}, {_NAMES[source]}",
                lines,
                content.period,
                number_text,
            )
        )
    return "\n".join(sections)


def _backlog(content: Content) -> str:
    last, lines = _last(content), []
    for source, found in content.flows.items():
        here = living(content.totals.get(source, {}))
        lines.append(ChartLine(f"all {_NAMES[source]}", _points(here, found, last)))
    for queue, found in content.queue_flows.items():
        here = living(content.now.get((QUEUE, queue), {}))
        lines.append(ChartLine(f"queue {shown(queue)}", _points(here, found, last)))
    whole = [line.points for line in lines if line.name == f"all {_NAMES[QUEUE]}"]
    if len(content.queue_flows) == 1 and whole == [lines[-1].points]:
        lines.pop()  # the last line is all queues
    return (
        "<h2>Backlog</h2>\n<p>Messages that waited, or were being worked on, at the end of each "
        f"{_length(content)}: scheduled ones included, dead ones not. Counted back from what is "
        "there now.</p>\n"
        + figure("Messages that are not done", lines, content.period, number_text)
    )


def _points(here: int, found: Sequence[Flow], last: int) -> list[tuple[int, float]]:
    flows = whole_periods(found, last)
    return [(period, float(number)) for period, number in backlog(here, flows)]


def _latencies(content: Content) -> str:
    sections = [
        "<h2>How long it takes</h2>",
        f"<p>Of messages that were done, each {_length(content)}. p50: half of them took no "
        "longer; p99: all "
        "but one in a hundred. Each line up is ten times as long.</p>",
    ]
    for source, stages in STAGES.items():
        for stage in stages:
            found = [
                each for each in content.by_period if (each.source, each.measure) == (source, stage)
            ]
            if not found:
                continue
            lines = [
                ChartLine(share, [(each.period or 0, getattr(each, share)) for each in found])
                for share in ("p50", "p90", "p99")
            ]
            title = f"{stage.capitalize()}, {_NAMES[source]}"
            sections.append(figure(title, lines, content.period, seconds_text, logarithmic=True))
    return "\n".join(sections) if len(sections) > 2 else ""


def _tables(content: Content) -> str:
    """Return the tables by queue, kind and prefix."""
    sections = []
    named: list[tuple[str, Sequence[MessageTimes], _Labels, list[str]]] = [
        ("By queue", content.queues, lambda each: [_whose(each)], ["queue"]),
        ("By kind", content.kinds, lambda each: [_whose(each), each.kind or _NONE],
         ["queue", "kind"]),
        ("By prefix of keys", content.prefixes,
         lambda each: [each.prefix or _NONE, _NAMES[each.source]], ["prefix", "of"]),
    ]  # fmt: skip
    for title, found, whose, columns in named:
        if found:
            rows = [
                [*whose(each), each.measure, number_text(each.messages), *_values(each)]
                for each in found
            ]
            heads = [*columns, "measure", "messages", "p50", "p90", "p99", "longest"]
            more = f"The busiest {ROWS_MAX}, if there are more."
            sections.append(
                f"<h2>{title}</h2>\n" + table(more, heads, rows, texts=len(columns) + 1)
            )
    return "\n".join(sections)


def _whose(each: MessageTimes) -> str:
    return each.queue or _NONE if each.source == QUEUE else "inboxes"


def _values(each: MessageTimes) -> list[str]:
    label = number_text if each.measure == RETRIES else seconds_text
    return [label(value) for value in (each.p50, each.p90, each.p99, each.max)]


def _dead(content: Content) -> str:
    states = [
        [_NAMES[source] if source == INBOX else queue, state, number_text(number)]
        for (source, queue), by_state in sorted(content.now.items())
        for state, number in sorted(by_state.items())
    ]
    sections = ["<h2>What is there now</h2>"]
    sections.append(
        table("By state.", ["queue", "state", "messages"], states, texts=2)
        if states else '<p class="none">Nothing waits, and nothing is dead.</p>'
    )  # fmt: skip
    if content.letters:
        rows = [
            [each.queue or _NONE, each.reason or _NONE, number_text(each.messages)]
            for each in content.letters
        ]
        sections.append("<h2>Dead letters</h2>")
        sections.append(
            table(
                f"By reason, the {ROWS_MAX} most frequent ones. Those of no queue are messages to "
                "inboxes, and deferred updates.",
                ["queue", "reason", "messages"],
                rows,
                texts=2,
            )
        )
    return "\n".join(sections)


def _closing(content: Content) -> str:
    return (
        f'<p class="soft">A chart shows the last {PERIODS_MAX} periods of its kind at most: each '
        f"{_length(content)} is one. Messages that were cancelled, or purged before they were "
        "archived, are not counted. Percentiles are approximate. All measures are in the table "
        "<code>measures</code> beside this page.</p>"
    )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
