"""A copy of this package that speaks one version more, to upgrade to.

The constants of each version are raised in the copy: the format of folders, the entries of the log,
the requests, and the version of Postroom itself. In the copy, an entry that changes the members
belongs to the new version of the entries.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.cluster.harness import PROJECT

RAISED = {
    "postroom/version.py": [(r'(VERSION = )"[^"]+"', r'\1"99.0.0"')],
    "postroom/kv/marker.py": [(r"(?m)^(FORMAT_VERSION: Final = )1$", r"\g<1>2")],
    "postroom/raft/stored_log.py": [
        (r"(?m)^(ENTRIES_VERSION: Final = )2$", r"\g<1>3"),
        (r"(?m)^(KIND_VERSIONS.* MEMBERSHIP: )1", r"\g<1>3"),
    ],
    "postroom/protocol/requests.py": [
        (r"(?m)^(REVISION: Final = .+)$", r"\1 + 1"),
    ],
}
"""The expressions that raise the constants of each file, and by what."""


def make_next_version(folder: Path) -> Path:
    """Copy the package and the tests into ``folder``, and raise the versions of the copy."""
    for name in ("postroom", "tests"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in RAISED.items():
        path = folder / name
        text = path.read_text()
        for pattern, by in changes:
            text, count = re.subn(pattern, by, text)
            assert count == 1, f"{name} has {count} lines like {pattern}"
        path.write_text(text)
    return folder
