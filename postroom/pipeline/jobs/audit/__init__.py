"""The job ``audit``: recounts what counters claim, and names every difference.

`facts` makes one data frame of all claims and all counts, `findings` says what the groups of it
mean, and `running` runs the job.
"""

from __future__ import annotations

from postroom.pipeline.jobs.audit.findings import AuditResult, CountDifference, Finding
from postroom.pipeline.jobs.audit.running import audit

__all__ = ["AuditResult", "CountDifference", "Finding", "audit"]
