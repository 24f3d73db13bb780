"""Jobs: what Spark does for a store, each a function and a command.

``docs/jobs.md`` tells what each of them is for, `job` what they have in common.
"""

from __future__ import annotations

from postroom.pipeline.jobs.index import IndexResult, index

__all__ = ["IndexResult", "index"]
