"""The page of a report: what it shows, and that it needs nothing but itself."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from postroom.layers.report.charts import ChartLine, chart, legend, number_text, seconds_text
from postroom.layers.report.measures import fitting_period
from postroom.layers.report.page import (
    PERIODS_MAX,
    Content,
    Flow,
    Letters,
    MessageTimes,
    backlog,
    living,
    page,
    whole_periods,
)

HOUR = 490_000
AT = (HOUR + 0.5) * 3600
HOSTILE = '<script>alert(1)</script>\x07 & "q" \'' + "x" * 1000
EMPTY = {"meta", "br"}


class Checked(HTMLParser):
    """A parser that fails where tags do not match, or an id is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self.said: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        for name in ("src", "href", "onclick", "onload"):
            assert name not in given
        if (id_ := given.get("id")) is not None:
            assert id_ not in self.ids
            self.ids.add(id_)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def checked(text: str) -> Checked:
    found = Checked()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


def taken(measure: str = "schedule to firing", **more: object) -> MessageTimes:
    given = {"source": "queue", "period": None, "queue": None, "kind": None, "prefix": None}
    numbers = {"messages": 5, "mean": 0.2, "p50": 0.1, "p90": 1.0, "p99": 61.0, "max": 7300.0}
    return MessageTimes(**{**given, **numbers, "measure": measure, **more})  # type: ignore[arg-type]


def full() -> Content:
    flows = [Flow(HOUR - 2, 10, 4, 1), Flow(HOUR, 3, 5, 0)]
    return Content(
        "shop", AT, "archive", AT - 3600, AT - 7200, ["something may be missing"],
        [taken(), taken("retries"), taken("delivery to reap", source="inbox")],
        [taken(period=HOUR - 2), taken(period=HOUR)],
        [taken(queue=HOSTILE), taken("retries", queue=HOSTILE)],
        [taken(queue="q", kind="k")],
        [taken("delivery to reap", source="inbox", prefix="airport")],
        {"queue": flows}, {HOSTILE: flows},
        {"queue": {"ready": 3, "dead": 1}}, {("queue", HOSTILE): {"ready": 3, "dead": 1}},
        3, [Letters(HOSTILE, "because", 1), Letters(None, "for another reason", 2)], 8,
    )  # fmt: skip


def test_the_page_needs_nothing_but_itself_and_hostile_names_stay_text() -> None:
    text = page(full())
    found = checked(text)
    assert "script" not in found.tags
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import", text)
    assert "<script" not in text
    assert "\x07" not in text
    assert max(map(len, found.said)) < 20_000
    said = "".join(found.said)
    for wanted in (
        "something may be missing",
        "airport",
        "for another reason",
        "schedule to firing",
    ):
        assert wanted in said


def test_marks_in_names_change_nothing_around_them_in_charts_either() -> None:
    """The chart of two queues has a line for each."""
    flows, name = [Flow(HOUR, 3, 5, 0)], "\u202eliam\x07"
    text = page(Content("shop", AT, flows={"queue": flows}, queue_flows={name: flows, "b": flows}))
    assert "queue b" in text
    assert "liam" in text
    assert not {"\u202e", "\x07"} & set(text)


def test_the_only_busy_queue_has_a_line_if_others_hold_messages() -> None:
    flows, here = [Flow(HOUR, 3, 5, 0)], {("queue", "busy"): {"ready": 1}}

    def shown(scheduled: int) -> str:
        totals = {"queue": {"ready": 1, "scheduled": scheduled}}
        return page(
            Content(
                "shop", AT, flows={"queue": flows}, queue_flows={"busy": flows}, totals=totals,
                now={**here, ("queue", "others"): {"scheduled": scheduled}},
            )
        )  # fmt: skip

    assert "queue busy" in shown(1000)
    assert "queue busy" not in shown(0), "it is all queues"


@pytest.mark.parametrize(
    ("span_seconds", "seconds", "called"),
    [
        (20, 1, "each second"),
        (3000, 10, "each 10 seconds"),
        (5 * 3600, 60, "each minute"),
        (24 * 3600, 600, "each 10 minutes"),
        (10**7, 3600, "each hour"),
    ],
)
def test_the_dots_of_a_chart_follow_the_span_of_the_data(
    span_seconds: int, seconds: int, called: str
) -> None:
    assert fitting_period(span_seconds, PERIODS_MAX) == seconds
    first, last = (int(AT - span_seconds) // seconds, int(AT) // seconds)
    flows = [Flow(first, 3, 0, 0), Flow(last, 0, 3, 0)]
    totals = {"queue": {"ready": 1}}
    text = page(Content("shop", AT, flows={"queue": flows}, totals=totals, period=seconds))
    checked(text)
    assert called in text
    drawn = text.count("L", text.index('<path class="s0"'))
    assert min(span_seconds // seconds, PERIODS_MAX - 1) <= drawn, "a line of many points"
    if span_seconds == 20:
        moment = datetime.fromtimestamp(last, UTC)
        assert f"{moment:%Y-%m-%d %H:%M:%S}: 3</title>" in text
        assert len(re.findall(r'text-anchor="[a-z]+">\d\d:\d\d:\d\d<', text)) >= 4


def test_charts_can_be_read_without_seeing_them() -> None:
    text = page(full())
    assert text.count('role="img"') == text.count("<desc ") == text.count("<figcaption>")
    assert 'lang="en"' in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<caption>") == text.count("<table>")


def test_a_store_in_which_nothing_happened_has_a_page() -> None:
    found = "".join(checked(page(Content("empty", AT))).said)
    assert "Nothing waits" in found
    assert "nothing to show" in found


def test_a_chart_tells_its_lines_apart_and_what_they_say() -> None:
    lines = [
        ChartLine("a & b", [(HOUR, 1.0), (HOUR + 1, 3.0), (HOUR + 3, 2.0)]),
        ChartLine("never", []),
        ChartLine("other", [(HOUR, 0.0)]),
    ]
    drawn = chart("Some", lines)
    checked(drawn)
    assert "a &amp; b: at most 3 " in drawn
    path = re.search(r'class="s0" stroke-dasharray="" d="([^"]*)"', drawn)
    assert path is not None
    assert [move[0] for move in re.findall(r"[ML][^ML]+", path[1])] == ["M", "L", "M"], (
        "an hour is missing"
    )
    assert 'class="s1" stroke-dasharray="7 3"' in drawn
    assert "never" not in drawn + legend(lines)
    many = [ChartLine(f"line {number}", [(HOUR, 1.0)]) for number in range(20)]
    assert chart("Many", many).count("stroke-dasharray") == 6


@pytest.mark.parametrize("values", [[0.0], [1e-9, 1e9], [5.0, 5.0], [0.001, 0.0], [123_456.0]])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_any_values_lie_within_the_drawing(values: list[float], *, logarithmic: bool) -> None:
    drawn = chart("Some", [ChartLine("x", list(enumerate(values, HOUR)))], logarithmic=logarithmic)
    heights = [float(y) for y in re.findall(r'cy="([^"]+)"', drawn)]
    assert len(heights) == len(values)
    assert all(0 <= y <= 240 for y in heights)
    assert 2 <= drawn.count('class="grid"') <= 14


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0123, "12.3 ms"), (1.5, "1.5 s"), (119.0, "119 s"), (121.0, "2.02 min"),
     (7200.0, "2 h"), (864_000.0, "10 d")],
)  # fmt: skip
def test_lengths_of_time_are_written_for_people(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_numbers_are_written_for_people() -> None:
    assert [number_text(each) for each in (0, 7, 0.25, 1234567, 99.5)] == [
        "0", "7", "0.25", "1,234,567", "99.5",
    ]  # fmt: skip


def test_the_backlog_is_counted_back_from_what_is_there() -> None:
    flows = whole_periods([Flow(10, 5, 0, 0), Flow(12, 1, 3, 1), Flow(99, 9, 9, 9)], 13)
    assert [flow.period for flow in flows] == [10, 11, 12, 13]
    assert backlog(2, flows) == [(10, 5), (11, 5), (12, 2), (13, 2)]
    assert [flow.period for flow in whole_periods(flows, 13, periods_max=2)] == [12, 13]
    assert whole_periods([], 13) == []
    assert living({"ready": 2, "dead": 5, "leased": 1}) == 3
