"""The parts of jobs that a job of a layer needs: its store, its folder, archives, and progress.

This module hands on names and nothing else. The modules that have them describe them.
"""

from __future__ import annotations

from postroom.kv.clock import LOGICAL_BITS
from postroom.pipeline.jobs.archive.files import Archived, read_archive
from postroom.pipeline.jobs.archive.folders import ArchiveFolder, literal_pattern, open_folder
from postroom.pipeline.jobs.archive.manifest import ArchiveManifest
from postroom.pipeline.jobs.archive.newest import latest_of_store, newest_number
from postroom.pipeline.jobs.job import SILENT, JobFailed, JobProgress, database

__all__ = [
    "LOGICAL_BITS",
    "SILENT",
    "ArchiveFolder",
    "ArchiveManifest",
    "Archived",
    "JobFailed",
    "JobProgress",
    "database",
    "latest_of_store",
    "literal_pattern",
    "newest_number",
    "open_folder",
    "read_archive",
]
