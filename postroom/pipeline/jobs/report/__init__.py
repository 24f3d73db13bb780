"""The job ``report``: how messages fare, as a table and a page (``docs/jobs.md``)."""

from __future__ import annotations

from postroom.pipeline.jobs.report.run import ReportResult, report

__all__ = ["ReportResult", "report"]
