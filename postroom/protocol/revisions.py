"""Which requests a node understands, by the *revision* that it tells in its Welcome.

Requests were added over time, and clients and nodes are upgraded one after the other. A node that
is asked what it does not know can only end the stream: it cannot even read the frame. So a client
asks no node for what came after the node's revision, and says so to whoever wanted it.

Whoever adds a request gives it the next revision here (``SINCE``, ``REVISION``). What has none was
there from the beginning. Nodes that tell no revision are of the first one, 0.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from postroom.errors import VersionMismatch
from postroom.protocol.failures import Failure
from postroom.ranges.requests import CommitTransaction

REVISION: Final = 1
"""Of this version."""

SINCE: Final[dict[str, int]] = dict.fromkeys(
    (
        "abandon_restore", "abort_staged", "acknowledge", "apply_staged", "begin_load",
        "begin_restore", "bury_messages", "cancel_messages", "cancel_scheduled", "check_image",
        "claim_queue", "create_queue", "drop_queue", "end_load", "end_restore", "end_restored_part",
        "enqueue", "extend", "forget_query", "list_queue_messages", "load_rows",
        "postpone_messages", "publish_staged", "read_partitions", "read_queue_message",
        "read_queue_stats", "read_queues", "read_restore", "read_schedules", "read_staging",
        "rebind_node", "reject", "replay_messages", "reschedule", "restore_entries",
        "scan_accounting", "scan_beside", "scan_columns", "scan_counters", "scan_dead_letters",
        "scan_image", "scan_inbox_index", "scan_inboxes", "scan_outbox", "scan_places",
        "scan_reaped", "set_schedule", "stage_rows", "sweep_staged", "trim_archive", "update_queue",
        "when_done",
    ),
    1,
)  # fmt: skip
"""The first revision that knows a request, by its name on the wire. (Nodes of revision 0 can
cancel; but a message that was postponed and holds up its inbox would leave that held up for ever.)
"""


def refusal(request: Any, revision: int) -> Failure | None:
    """What is said instead of asking a node of this revision; ``None``: it may be asked."""
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
    """What a kind of request is called on the wire."""
    config: msgspec.structs.StructConfig = kind.__struct_config__  # type: ignore[attr-defined]
    return str(config.tag)
