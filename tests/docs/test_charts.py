"""The charts of the page about performance show what its tables say."""

from __future__ import annotations

import pytest

from benchmarks import charts

PAGE = charts.PAGE.read_text()


@pytest.mark.parametrize("chart", charts.ALL, ids=lambda each: each.name)
def test_a_chart_is_made_from_the_present_table(chart: charts.Chart) -> None:
    drawn = (charts.CHARTS / f"{chart.name}.svg").read_text()
    assert drawn == charts.draw(chart, PAGE), "run: python -m benchmarks.charts"


@pytest.mark.parametrize("chart", charts.ALL, ids=lambda each: each.name)
def test_a_chart_is_on_the_page(chart: charts.Chart) -> None:
    assert f"](charts/{chart.name}.svg)" in PAGE


def test_a_removed_chart_leaves_no_file() -> None:
    found = {each.stem for each in charts.CHARTS.glob("*.svg")}
    assert found == {chart.name for chart in charts.ALL}


def test_a_cell_is_read_with_its_range() -> None:
    assert charts.value("1,234 (1,000 to 1,500)") == (1234, 1000, 1500)
    assert charts.value("0.9: **no**") == (0.9, 0.9, 0.9)
    assert charts.value("") is None


def test_a_chart_whose_table_is_gone_says_which() -> None:
    with pytest.raises(LookupError, match="for the chart sqlite"):
        charts.draw(charts.ALL[0], "# Performance\n")
