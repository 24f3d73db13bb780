"""The job ``report`` (``docs/jobs.md``)."""

from __future__ import annotations

from postroom.pipeline.jobs.report.run import ReportResult, report

__all__ = ["ReportResult", "report"]
