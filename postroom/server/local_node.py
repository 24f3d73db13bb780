"""The command line, for a node that ends when whoever started it does, however that comes.

A local cluster is started by one process, which stops it in good order; but that one may be killed,
and nobody should have to look for nodes that are left over then. Linux tells a process of its
parent's end, if it asks; elsewhere they are left over.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

from postroom.server.command_line import main

PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Be killed when the parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    main()
