"""A failed test tells what the nodes wrote."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.cluster import harness


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[Any]:
    report: pytest.TestReport = yield
    if report.failed and call.when == "call":
        report.sections += [("nodes", cluster.logs()) for cluster in harness.running]
    return report
