"""The job ``report``: how messages fare, as a table and a page (``docs/jobs.md``)."""

from __future__ import annotations

from postroom.layers.report.run import ReportResult, report

__all__ = ["ReportResult", "report"]
