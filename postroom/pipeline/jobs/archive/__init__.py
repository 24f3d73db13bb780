"""The job ``archive``, and reading what it has written (``docs/jobs.md``)."""

from __future__ import annotations

from postroom.pipeline.jobs.archive.files import Archived, read_archive
from postroom.pipeline.jobs.archive.manifest import Gap
from postroom.pipeline.jobs.archive.run import ArchiveResult, archive

__all__ = ["ArchiveResult", "Archived", "Gap", "archive", "read_archive"]
