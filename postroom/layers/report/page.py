"""The page of a report: one file, which needs no network and no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, TypeAlias

from postroom.layers.report.charts import (
    ChartLine,
    chart,
    legend,
    number_text,
    period_text,
    seconds_text,
)
from postroom.layers.report.content import (
    PERIODS_MAX,
    ROWS_MAX,
    Content,
    Flow,
    MessageTimes,
    backlog,
    living,
    whole_periods,
)
from postroom.layers.report.measures import RETRIES, STAGES
from postroom.layers.report.sources import INBOX, QUEUE

_Labels: TypeAlias = Callable[[MessageTimes], list[str]]
_NONE: Final = "-"
_NAMES: Final = {QUEUE: "queues", INBOX: "inboxes"}
_FEW: Final = 2
"""A chart of this many periods, or fewer, is shown as numbers at once."""
_CHARACTERS_MAX: Final = 300

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
    parts = [
        _head(content), _tiles(content), _throughput(content), _backlog(content),
        _latencies(content), _tables(content), _dead(content),
        _closing(content),
    ]  # fmt: skip
    return "\n".join(part for part in parts if part) + "\n</main>\n</body>\n</html>\n"


def _head(content: Content) -> str:
    read = f"Read at {_moment(content.at)}"
    if content.archive is not None:
        read += f", with the archive {_text(content.archive)}"
        read += (
            f", which reaches up to {_moment(content.archived_until)}"
            if content.archived_until else ", which is empty"
        )  # fmt: skip
    if content.since:
        read += f"; messages that ended before {_moment(content.since)} are left out"
    warnings = "".join(f'<p class="warning">{_text(gap)}</p>' for gap in content.gaps)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>Postroom: {_text(content.store)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>Messages of {_text(content.store)}</h1>\n"
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
    items = "".join(f"<li><b>{value}</b>{_text(name)}</li>" for name, value in tiles)
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
    parts = [
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
        parts.append(
            _figure(
                content, f"Messages each {_length(content)}, {_NAMES[source]}", lines, number_text
            )
        )
    return "\n".join(parts)


def _backlog(content: Content) -> str:
    last, lines = _last(content), []
    for source, found in content.flows.items():
        here = living(content.totals.get(source, {}))
        lines.append(ChartLine(f"all {_NAMES[source]}", _points(here, found, last)))
    for queue, found in content.queue_flows.items():
        here = living(content.now.get((QUEUE, queue), {}))
        lines.append(ChartLine(f"queue {_shown(queue)}", _points(here, found, last)))
    whole = [line.points for line in lines if line.name == f"all {_NAMES[QUEUE]}"]
    if len(content.queue_flows) == 1 and whole == [lines[-1].points]:
        lines.pop()  # the last line is all queues
    return (
        "<h2>Backlog</h2>\n<p>Messages that waited, or were being worked on, at the end of each "
        f"{_length(content)}: scheduled ones included, dead ones not. Counted back from what is "
        "there now.</p>\n" + _figure(content, "Messages that are not done", lines, number_text)
    )


def _points(here: int, found: Sequence[Flow], last: int) -> list[tuple[int, float]]:
    flows = whole_periods(found, last)
    return [(period, float(number)) for period, number in backlog(here, flows)]


def _latencies(content: Content) -> str:
    parts = [
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
                ChartLine(name, [(each.period or 0, value(each)) for each in found])
                for name, value in _SHARES.items()
            ]
            title = f"{stage.capitalize()}, {_NAMES[source]}"
            parts.append(_figure(content, title, lines, seconds_text, logarithmic=True))
    return "\n".join(parts) if len(parts) > 2 else ""


_SHARES: Final[dict[str, Callable[[MessageTimes], float]]] = {
    "p50": lambda each: each.p50,
    "p90": lambda each: each.p90,
    "p99": lambda each: each.p99,
}


def _figure(
    content: Content, title: str, lines: Sequence[ChartLine], label: Callable[[float], str],
    *, logarithmic: bool = False,
) -> str:  # fmt: skip
    drawn = chart(title, lines, seconds=content.period, label=label, logarithmic=logarithmic)
    if not drawn.startswith("<svg"):
        return drawn
    periods = sorted({each for line in lines for each, _ in line.points}, reverse=True)
    known = [dict(line.points) for line in lines]
    rows = [
        [
            period_text(each, content.period),
            *(label(by[each]) if each in by else "" for by in known),
        ]
        for each in periods
    ]
    opened = " open" if len(periods) <= _FEW else ""
    table = _table(title, ["from", *(line.name for line in lines)], rows)
    return (
        f"<figure>\n<figcaption>{_text(title)}</figcaption>\n{legend(lines)}\n"
        f'<div class="plot" tabindex="0" role="group" aria-label="{_text(title)}">{drawn}</div>\n'
        f"<details{opened}><summary>The numbers</summary>{table}</details>\n</figure>"
    )


def _tables(content: Content) -> str:
    """Return the tables by queue, kind and prefix."""
    parts = []
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
            parts.append(f"<h2>{title}</h2>\n" + _table(more, heads, rows, texts=len(columns) + 1))
    return "\n".join(parts)


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
    parts = ["<h2>What is there now</h2>"]
    parts.append(
        _table("By state.", ["queue", "state", "messages"], states, texts=2)
        if states else '<p class="none">Nothing waits, and nothing is dead.</p>'
    )  # fmt: skip
    if content.letters:
        rows = [
            [each.queue or _NONE, each.reason or _NONE, number_text(each.messages)]
            for each in content.letters
        ]
        parts.append("<h2>Dead letters</h2>")
        parts.append(
            _table(
                f"By reason, the {ROWS_MAX} most frequent ones. Those of no queue are messages to "
                "inboxes, and deferred updates.",
                ["queue", "reason", "messages"],
                rows,
                texts=2,
            )
        )
    return "\n".join(parts)


def _closing(content: Content) -> str:
    return (
        f'<p class="soft">A chart shows the last {PERIODS_MAX} periods of its kind at most: each '
        f"{_length(content)} is one. What was purged before "
        "it was archived, or cancelled, is not counted. Percentiles are approximate. All measures "
        "are in the table <code>measures</code> beside this page.</p>"
    )


def _table(
    caption: str, heads: Iterable[str], rows: Iterable[Sequence[str]], *, texts: int = 1
) -> str:
    def cells(row: Iterable[str], kind: str) -> str:
        made = []
        for number, each in enumerate(row):
            text = ' class="text"' if number < texts else ""
            scope = ' scope="col"' if kind == "th" else ""
            made.append(f"<{kind}{scope}{text}>{_text(each)}</{kind}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "\n".join(cells(row, "td") for row in rows)
    return (
        f'<div class="wide"><table><caption>{_text(caption)}</caption>'
        f"<thead>{cells(heads, 'th')}</thead>\n<tbody>{body}</tbody></table></div>"
    )


def _text(text: str) -> str:
    """Return text of a user as HTML that shows it literally."""
    return escape(_shown(text))


def _shown(text: str) -> str:
    """Return text without signs that change what is around it, such as the direction of writing."""
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    if len(shown) > _CHARACTERS_MAX:
        shown = shown[: _CHARACTERS_MAX - 1] + "…"
    return shown


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


__all__ = ["page"]
