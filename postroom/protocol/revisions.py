"""The revision of requests that a node understands, which it tells in its Welcome.

Requests were added over time, and clients and nodes are upgraded one after the other. A node that
is asked an unknown request can only end the stream: it cannot even read the frame. A client
therefore sends no node a request from after the node's revision, and tells its caller that.

A new request gets the next revision here (``SINCE``, ``REVISION``). A request without one was
there from the beginning. Nodes that tell no revision are of the first one, 0.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from postroom.errors import VersionMismatch
from postroom.protocol.failures import Failure
from postroom.ranges.requests import CommitTransaction

REVISION: Final = 2
"""The revision of this version."""

SINCE: Final[dict[str, int]] = dict.fromkeys(
    (
        "abandon_restore", "abort_staged", "acknowledge", "apply_staged", "begin_load",
        "begin_restore", "bury_messages", "cancel_messages", "cancel_scheduled", "check_image",
        "claim_queue", "create_queue", "drop_queue", "end_load", "end_restore", "end_restored_part",
        "enqueue", "extend", "forget_query", "list_queue_messages", "load_rows", "lock",
        "postpone_messages", "publish_staged", "read_partitions", "read_queue_message",
        "read_queue_stats", "read_queues", "read_restore", "read_schedules", "read_staging",
        "rebind_node", "reject", "replay_messages", "reschedule", "restore_entries",
        "scan_accounting", "scan_beside", "scan_columns", "scan_counters", "scan_dead_letters",
        "scan_image", "scan_inbox_index", "scan_inboxes", "scan_outbox", "scan_places",
        "scan_reaped", "set_schedule", "stage_rows", "sweep_staged", "trim_archive", "update_queue",
        "when_done",
    ),
    1,
) | dict.fromkeys(("keep_position", "read_positions"), 2)  # fmt: skip
"""The first revision that knows a request, by its name on the wire.

(Nodes of revision 0 can cancel; but if a postponed message holds up its inbox, a cancellation there
would leave that held up for ever.)
"""


def refusal(request: Any, revision: int) -> Failure | None:
    """Return the failure of a request that a node of this revision does not know, or ``None``."""
    asked = [request]
    if type(request) is CommitTransaction:
        asked += request.writes
    for each in asked:
        name = name_of(type(each))
        if SINCE.get(name, 0) > revision:
            return (
                VersionMismatch.__name__,
                (
                    f"the node that leads runs an earlier version of Postroom, which does not know "
                    f"{name!r}; nothing was changed: upgrade all nodes, then try again"
                ),
                None,
            )
    return None


def name_of(kind: type) -> str:
    """Return the name of a type of request on the wire."""
    config: msgspec.structs.StructConfig = kind.__struct_config__  # type: ignore[attr-defined]
    return str(config.tag)
