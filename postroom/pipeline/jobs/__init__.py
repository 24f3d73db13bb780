"""Jobs that Spark does for a store, each a function and a command.

``docs/jobs.md`` describes each of them, `job` what they have in common. The job ``report`` is a
layer, which is written over the others; it is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.pipeline.jobs.archive import ArchiveResult, archive, read_archive
from postroom.pipeline.jobs.audit import AuditResult, audit
from postroom.pipeline.jobs.export import ExportResult, export
from postroom.pipeline.jobs.index import IndexResult, index
from postroom.pipeline.jobs.load import LoadOptions, LoadResult, load
from postroom.pipeline.jobs.restore import RestoreResult, abandon_restore, restore

if TYPE_CHECKING:
    from postroom.layers.report import ReportResult, report

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

if not TYPE_CHECKING:  # or any name would do for a type checker

    def __getattr__(name: str) -> Any:
        if name not in ("ReportResult", "report"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from postroom.layers import report as layer  # noqa: PLC0415 - it imports this package

        return getattr(layer, name)
