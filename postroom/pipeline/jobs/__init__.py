"""Jobs that Spark does for a store, each a function and a command.

``docs/jobs.md`` describes each of them, `job` what they have in common.
"""

from __future__ import annotations

from postroom.pipeline.jobs.archive import ArchiveResult, archive, read_archive
from postroom.pipeline.jobs.audit import AuditResult, audit
from postroom.pipeline.jobs.export import ExportResult, export
from postroom.pipeline.jobs.index import IndexResult, index
from postroom.pipeline.jobs.load import LoadOptions, LoadResult, load
from postroom.pipeline.jobs.report import ReportResult, report
from postroom.pipeline.jobs.restore import RestoreResult, abandon_restore, restore

__all__ = [
    "ArchiveResult",
    "AuditResult",
    "ExportResult",
    "IndexResult",
    "LoadOptions",
    "LoadResult",
    "ReportResult",
    "RestoreResult",
    "abandon_restore",
    "archive",
    "audit",
    "export",
    "index",
    "load",
    "read_archive",
    "report",
    "restore",
]
