"""Every limit, in one place, with its unit last."""

from __future__ import annotations

from typing import Final

KEY_BYTES_MAX: Final = 8 * 1024
VALUE_BYTES_MAX: Final = 1024 * 1024
MESSAGE_BYTES_MAX: Final = 1024 * 1024
INTEGER_MIN: Final = -(1 << 63)
"""The least number that a counter may contain, and ``INTEGER_MAX``: the greatest."""
INTEGER_MAX: Final = (1 << 63) - 1
TRANSACTION_BYTES_MAX: Final = 16 * 1024 * 1024
TRANSACTION_SECONDS_MAX: Final = 60.0
REAPED_BYTES_DEFAULT: Final = TRANSACTION_BYTES_MAX // 2
"""The bytes of a reap that names no number: its transaction must be able to commit them."""

PEEKED_MESSAGES_MAX: Final = 10_000
"""Messages of one inbox in one ``peek`` of a transaction: the commit checks each of them again."""

CLOCK_OFFSET_SECONDS_MAX: Final = 0.5
"""The largest difference between the clocks of two nodes (``max_offset``)."""

GC_TTL_SECONDS: Final = 60.0
"""The time for which an overwritten version can still be read."""
GC_TTL_SECONDS_MAX: Final = 366 * 86_400.0
GC_INTERVAL_SECONDS: Final = 5.0
"""The time from one collection of garbage in a range to the next, at least."""
GC_INTERVAL_SECONDS_MAX: Final = 3600.0
POLL_SECONDS: Final = 5.0
"""The time after which a node looks for work that it has not heard of."""
POLL_SECONDS_MIN: Final = 0.05
POLL_SECONDS_MAX: Final = 10.0
SLOW_SECONDS_MAX: Final = 3600.0
"""The longest time from which commits and locks may be logged as slow."""
SETTING_BYTES_MAX: Final = 1 << 50
"""The greatest value of a setting in bytes."""
SETTING_NAME_CHARACTERS_MAX: Final = 64
"""The longest name that a request to change a setting may have."""

SYNC_INTERVAL_SECONDS: Final = 0.05
"""The most that a loss of power may cost with ``durability="interval"``."""

PROPOSAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""No more requests join a proposal that has grown past this."""

OUTGOING_MAX: Final = 1_000_000
"""The messages and updates on their way to other ranges: more are refused (``OutboxFull``)."""
OUTGOING_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The bytes of these."""
HANDED_OVER_MAX: Final = 512
"""The messages or updates that a range hands over to another one in a batch."""
HANDED_OVER_BYTES_MAX: Final = 1024 * 1024
"""The bytes of a batch: one that has more than one entry is no larger."""

PREPARED_MAX: Final = 10_000
"""The transactions over several ranges that a range has prepared; more are told to come back."""
PREPARED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of these."""
PREPARED_RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The bytes of one of them: what a transaction has read and writes in another range."""
PREPARED_KEPT_BYTES_MAX: Final = 2 * 1024
"""The size of a prepared record up to which its writes stay in the leaseholder's memory, too."""
PREPARED_SPANS_MAX: Final = 10_000
"""The spans that a transaction may have read in another range than that of its anchor."""

UPKEEP_BYTES: Final = 2 * 1024 * 1024
"""The share of that for deliveries, updates and garbage collection."""

FEED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The last changes that are kept for watchers."""

MEMORY_BYTES: Final = 128 * 1024 * 1024
"""The budget of memory that a store has unless it is given another one (``kv/engine.py``)."""
MEMORY_BYTES_MIN: Final = 8 * 1024 * 1024
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The size of one memtable: opening after a crash reads that much again."""
HEAD_FILTER_BYTES_MAX: Final = 32 * 1024 * 1024
"""The size of the filter of heads; making a larger one would take too long for a turn."""

DISK_RESERVE_BYTES: Final = 32 * 1024 * 1024
"""The free bytes of a device below which writes are refused: a full disk would stop the store."""

HELLO_SECONDS: Final = 5.0
"""The time in which a caller must agree on TLS and say who it is."""
CONNECTIONS_MAX: Final = 10_000
"""Connections of a node; fewer if storage needs the descriptors (``DESCRIPTORS_RESERVED``)."""
SERVED_CONNECTIONS_MAX: Final = 256
"""Connections to an embedded store that its application serves: the descriptors are its own."""
SOCKET_PATH_BYTES_MAX: Final = 107
"""The path of a socket in the file system; the system's structure has one byte more."""
CONNECTIONS_PENDING_MAX: Final = 1_000
CONNECTIONS_PENDING_PER_HOST_MAX: Final = 128
"""Connections of one host that have not said who they are. A newer one replaces the oldest."""
UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Frames of clients that have come in part: beyond it the slowest stream ends."""
DESCRIPTORS_RESERVED: Final = 256
"""File descriptors that connections leave to storage, to the log, and to the node's own calls."""
LOG_SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""The size of a segment of the log. Two are usually in use, and more while followers lag."""

LOG_SEGMENT_BYTES_MIN: Final = 64 * 1024

CLAIMED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Messages that reapers have found and not consumed yet, which a range keeps in memory."""

READ_AHEAD_BYTES_MAX: Final = 64 * 1024
"""Messages of one inbox that a range has read ahead of the next reapers."""
READ_AHEAD_INBOXES_MAX: Final = 16
"""Inboxes with messages read ahead: those that were reaped last."""

FULL_DEVICE_BYTES_MAX: Final = 32 * 1024 * 1024
FULL_DEVICE_KEYS_MAX: Final = 200_000
"""Keys that stay in memory while the device is full. With more the storage stops."""

GATHERED_KEYS_MAX: Final = 1024
GATHERED_BYTES_MAX: Final = 1024 * 1024
"""Writes of several turns that become one batch when they are larger."""

QUEUE_EPOCH_MAX: Final = 1_000_000_000
"""The largest number of times that a message of a queue may claim to have been fired."""
TRACED_QUEUES_MAX: Final = 1_000
"""The queues in which a message is looked for whose queue is not named."""
TRACED_COMMITS_MAX: Final = 100
"""The timestamps whose COMMIT records one request asks for."""
REASON_CHARACTERS_MAX: Final = 1000
"""The length of the stored reason of a failure."""
RESULT_BYTES_MAX: Final = 64 * 1024
"""The returned value of a task, packed."""
RESULT_SECONDS_MAX: Final = 366 * 86_400.0
"""The longest time for which a result is kept."""
TRACEBACK_CHARACTERS_MAX: Final = 16_000
"""The stored end of the traceback of a failed task."""

HEADERS_BYTES_MAX: Final = 64 * 1024
"""The headers of one message, packed."""
HEADERS_BYTES_PER_STEP: Final = 16
"""The bytes of headers whose check costs one step of a turn."""
CONTEXT_CHARACTERS_MAX: Final = 8192
"""The length of a header from which the context of a trace is read: that of the longest baggage."""
SPAN_LINKS_MAX: Final = 128
"""The messages to which one span is linked: OpenTelemetry keeps no more."""
CONTEXTS_MAX: Final = 10_000
"""The messages of one commit that carry the context of a trace; in a larger commit none does."""
HEADERS_DEPTH_MAX: Final = 16
"""The nesting depth of headers: the dictionary itself is one."""
DEPTH_MAX: Final = 128
"""The nesting depth of a value or payload that a codec packs: what was sent can be read."""

PREFIXES_MAX: Final = 32
"""The number of prefixes of the key of an ``Accounting``."""
METRICS_MAX: Final = 64
"""The number of metrics to which one ``Accounting`` adds."""
METRIC_BYTES_MAX: Final = 256
"""The name of a metric, in UTF-8."""
METRICS_PER_PREFIX_MAX: Final = 1024
"""The metrics of a prefix: their sums are one record, which is written as a whole."""

TURN_STEPS_MAX: Final = 8192
"""Steps of evaluation in one turn of the node, about one a visited key.

Longer work goes on with the next turn.
"""
INTAKE_STEPS_MAX: Final = 2048
"""Further steps of a turn, for taking in what clients send."""
FRAME_STEPS: Final = 4
"""The cost of a frame in steps, whatever is in it."""
FRAME_AT_ONCE_BYTES: Final = 16 * 1024
"""A longer frame is decoded a few requests at a time."""
FRAME_BYTES_PER_STEP: Final = 512
"""This many bytes of a frame cost one more step each time they are gone over."""
DECODED_BYTES_PER_STEP: Final = 2048
"""This many bytes of memory that a request takes cost one more step."""
QUEUES_PER_STEP: Final = 16
"""This many queues of which some are told cost one step."""
REQUEST_STEPS: Final = 4
"""The cost of a request in steps, besides the keys that it visits."""
DESCRIPTION_STEPS: Final = 512
"""The cost in steps of describing a node: it asks the device, and the engine."""
LISTING_STEPS: Final = 32
"""The cost in steps of telling a range: it asks the engine for a size."""
WELCOME_STEPS: Final = 16
"""The cost in steps of telling a client the leader and the nodes."""
COMPLETED_AT_ONCE_MAX: Final = 32_768
"""Writes of a larger proposal that are listed as garbage, and encoded, in one turn."""
READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""No more joins one answer that has grown past this, whatever its request asks for."""
DELIVERED_AT_ONCE_MAX: Final = 10_000
"""Messages that are delivered in the proposal that sends them; the others go to the outbox."""
EXECUTED_AT_ONCE_MAX: Final = 16_384
"""Deferred updates that are executed in one proposal; most are numbers to be added up."""
TRANSACTION_STEPS_MAX: Final = 1_000_000
"""Steps to check and carry out one transaction, over all its turns.

Other writers wait for it.
"""
DELETED_AT_ONCE_MAX: Final = 2000
"""The keys that ``db.delete_range`` removes in one transaction, and a deferred one in one step.

It is what one turn has room for: nobody waits for more of a deletion than that.
"""
DELETION_VISITS_MAX: Final = TURN_STEPS_MAX
"""Keys that such a step looks at, with those that are deleted already.

Each step writes an entry to the log.
"""
INBOXES_LISTED_MAX: Final = 10_000
INBOXES_LISTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Inboxes of one span in one request, and bytes of their keys."""
INBOXES_BY_KEY_MAX: Final = 2000
"""The first inboxes by their keys, in one answer: these keys take 16 MiB at most."""
INBOXES_ORDERED_MAX: Final = 65_536
INBOXES_ORDERED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Inboxes with the oldest messages that are kept in their order in memory.

Half of either is at least as much as one answer contains.
"""
PROTECTIONS_MAX: Final = 100_000
"""Timestamps that are protected at a time, for all clients of a store."""
PROTECTED_SECONDS_MAX: Final = 7 * 86_400.0
"""The longest time for which a protection alone keeps overwritten versions."""
WHOLE_SECONDS_MAX: Final = 86_400.0
"""The age at which a timestamp ceases to be protected as a whole."""
WHOLE_AHEAD_SECONDS_MAX: Final = 2.0
"""The lead of a timestamp at which all ranges are to be protected as a whole.

Commits over several ranges wait for no longer at a time.
"""
WHOLE_LEAD_SECONDS_MAX: Final = 10.0
"""The time by which a clock may be ahead since everything was protected as a whole too often."""
ENGINE_SNAPSHOTS_MAX: Final = 16
"""Timestamps that a node protects as a whole at a time: each holds back compaction."""
ENGINE_SNAPSHOTS_PER_HOST_MAX: Final = 12
"""The share of these for all clients of one host, which leaves some to others."""
POSITIONS_MAX: Final = 1000
"""Named positions that a range keeps."""
POSITIONS_SHOWN_MAX: Final = 20
"""The positions that ``postroom status`` shows; ``--json`` shows all."""
POSITION_NAME_CHARACTERS_MAX: Final = 128
POSITION_SECONDS: Final = 86_400.0
POSITION_SECONDS_MAX: Final = 7 * 86_400.0
"""The longest time for which a position is kept, if its reader asks for it; a day otherwise."""
PARTITIONS_MAX: Final = 1024
"""The number of parts into which one answer divides a span."""
PARTITION_BYTES_MIN: Final = 64 * 1024
SPLIT_BYTES: Final = 512 * 1024 * 1024
"""The size from which ranges of a new cluster split."""
SPLIT_LOAD: Final = 0.5
"""The part of a processor from which ranges of a new cluster split."""
SPLIT_BYTES_MIN: Final = 1024 * 1024
"""The least size from which ranges may be told to split."""
LATE_LEASES_MAX: Final = 3
"""The leases in a row that are over when they are stored, before a leader hands over."""
SPLIT_LOAD_MIN: Final = 0.1
SPLIT_LOAD_MAX: Final = 64.0
"""The parts of a processor from which ranges may be told to split."""
LOAD_SPLIT_RANGES_MAX: Final = 8
"""The ranges for each node of a cluster up to which ranges are split by their loads."""
DIVISION_SECONDS_PER_MILLION: Final = 50.0
"""The time in which a million records of queues are divided while clients commit."""
DIVISION_YIELDS_SECONDS_MAX: Final = 120.0
"""The time for which a division yields to commits of clients: then it catches up with them."""
LOAD_SAMPLES_MIN: Final = 20
"""The number of samples that tell the loads of ranges."""
LOAD_SAMPLES_MAX: Final = 512
"""The samples that a node keeps from one look at the loads to the next."""
EXPANSION_BYTES_MAX: Final = 4 * 1024 * 1024
"""No more updates join a step of the executor whose sums take so much already."""
EXPANSION_METRICS_MAX: Final = 16_384
"""The metrics of prefixes in one step of the executor."""
GARBAGE_LIST_KEYS_MAX: Final = 2000
GARBAGE_LIST_BYTES_MAX: Final = 1024 * 1024
"""The size of one list of garbage; a proposal may leave several."""

STAGED_QUERY_BYTES_MAX: Final = 512
"""The name of a query, or of a bulk load, that stages rows."""
STAGED_CURSOR_BYTES_MAX: Final = 2 * STAGED_QUERY_BYTES_MAX + 32
"""The name of a record of staging at which a sweep goes on: an escaped query, and a job."""
STAGED_CHUNK_BYTES_MAX: Final = VALUE_BYTES_MAX + 256 * 1024
"""A chunk of staged rows: room for the largest row, with its key and its headers."""
STAGED_STEP_ROWS_MAX: Final = 8192
STAGED_STEP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Staged rows, with what they overwrite, that one step publishes together."""
STAGED_OUTGOING_MAX: Final = 32_768
"""The entries on their way to other ranges beyond which no step of staged rows adds more.

Messages of others wait behind them, and so does the end of a batch, for which clients have a
minute.
"""
STAGED_DELETED_AT_ONCE_MAX: Final = 512
"""The chunks of staged rows that one step deletes."""
STAGED_SWEPT_AT_ONCE_MAX: Final = 500
"""The records of staging that one step of sweeping visits."""
STAGED_SECONDS_MAX: Final = 24 * 3600.0
"""The time after which the next publication drops rows that were staged and not published."""

RESTORED_CHUNK_ROWS_MAX: Final = 8192
"""The entries of a chunk of an export that is restored; its bytes count as a transaction's do."""
RESTORED_PARTS_MAX: Final = 10_000
"""The number of parts, or files, into which a restore is divided."""
RESTORED_HELD_MAX: Final = 50_000
"""Messages of one holding in an export: those given to a consumer at once.

A step of a queue gives out 2,000.
"""
RESTORED_AHEAD_SECONDS_MAX: Final = 24 * 3600.0
"""The largest lead of the clock of restored data over the store's own."""
COUNTED_SECONDS_MAX: Final = 3600.0
"""The time in which a node counts all entries: a million take a few seconds."""

BACKUP_PAGE_BYTES_MIN: Final = 16 * 1024
"""The bytes of a page that a backup reads, which are less the more ranges it reads at once."""
BACKUP_BLOCK_ROWS_MAX: Final = 2 * 8192
"""The entries of a block in a file of a backup."""
BACKUP_BLOCK_BYTES_MAX: Final = 2 * TRANSACTION_BYTES_MAX
"""The bytes of a block, unpacked: a MiB of entries, or a single large one."""
BACKUP_MANIFEST_BYTES_MAX: Final = 8 * 1024 * 1024
"""The bytes of the manifest of a backup."""
BACKUP_PARTS_MAX: Final = 2048
"""The parts, or files, of a backup."""
BACKUP_CHAIN_MAX: Final = 64
"""The backups of a chain: a full one, and those that have what has changed since the one before."""
BACKUP_FOLDERS_MAX: Final = 10_000
"""The folders beside a backup in which the ones before it are looked for."""
TRANSIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""The marks of all pairs of ranges, which a backup has in memory: those of some 250 ranges."""
TRANSIT_PARTS_MAX: Final = 1 << 11
"""The parts of an update in transit that ranges have not taken, in a backup."""
TRAIL_BYTES_MAX: Final = 512 * 1024 * 1024
"""The trail of changes since the last backup, and an eighth of the free room of the device at most.

The backup that finds it so large begins it anew, before what is there is read and removed.
"""
TRAIL_WRITES_MAX: Final = 16 * 1024
"""The raw writes of a command that the trail keeps: it is made in the turn that applies them."""
TRAIL_LOOKED_AT_ONCE_MAX: Final = 4000
"""The entries of the trail that one step of forgetting looks at."""
RESTORE_REMOVED_AT_ONCE_MAX: Final = 2000
"""The entries of an abandoned restore that one step removes."""

LOCK_WAIT_SECONDS_MAX: Final = 10.0
"""The time that a commit waits for locks of others.

Its client, which waits for ``REQUEST_SECONDS``, is told in time.
"""
LOCK_ELSEWHERE_SECONDS_MAX: Final = 2.0
"""The time for which a transaction with a lock waits for one in another range.

No range sees a circle of transactions that wait for each other in several.
"""
LOCKS_AT_ONCE_MAX: Final = 128
"""The keys, and the spans, that a request locks, and that an error names."""
LOCKS_MAX: Final = 10_000
"""The keys and spans that a transaction locks.

``TRANSACTION_BYTES_MAX`` of memory is the other limit.
"""
LOCKED_SPANS_MAX: Final = LOCKS_AT_ONCE_MAX
"""The number of these that may be spans: each costs everybody who locks or deletes a span."""
LOCK_BYTES: Final = 256
"""The memory that a lock takes besides its key."""
LOCKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory for the locks of a range. Beyond it, each client still has its share."""

REQUEST_SECONDS: Final = 15.0
"""The time for which a request is tried again before its caller is told.

It is long enough for an election, a lease that runs out and a rolling restart.
"""

FRAME_STRETCH_BYTES: Final = 256 * 1024
"""A longer frame of a client is decoded over several turns, about this much in each."""
FRAMES_DECODED_BYTES_MAX: Final = 256 * 1024 * 1024
"""All frames that are being decoded over several turns: one more is told to come back."""
DECODED_TIMES_MAX: Final = 8
"""The memory of a request as a multiple of its bytes (or ``DECODED_BYTES_MIN``)."""
DECODED_BYTES_MIN: Final = 16 * 1024 * 1024
DECODED_BYTES_MAX: Final = 96 * 1024 * 1024
"""Memory for one request, whatever its bytes."""
DECODED_BYTES_ALL: Final = 128 * 1024 * 1024
"""Memory for the requests under way of all clients.

Beyond it, each client still has its share of as much again.
"""
REQUEST_ITEMS_MAX: Final = 1_000_000
"""The length of a list in one request: keys to read, writes, ids."""

# --- frames and streams ---------------------------------------------------------------------------

FRAME_BYTES_MAX: Final = 2 * TRANSACTION_BYTES_MAX
"""A client's frame: it holds at least the largest transaction."""
NODES_TOLD_MAX: Final = 4096
"""The nodes that one Welcome lists."""
RANGES_TOLD_MAX: Final = 1024
"""The ranges that one failure lists."""
RANGES_TOLD_BYTES_MAX: Final = 1024 * 1024
"""The bytes of the keys in them."""
LED_RANGES_TOLD_MAX: Final = 16_384
"""The ranges that one Welcome lists: a client finds no other one of the node."""
LED_RANGES_TOLD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bytes of the keys in them."""
LED_RANGES_A_STEP: Final = 64
"""Ranges are told this many to a step."""
REQUESTS_PER_FRAME_MAX: Final = 4096
"""The requests in a client's frame. A node takes them on in one turn, if it has room."""
OPENING_BYTES_MAX: Final = 64 * 1024
"""A frame before its sender was let in, and has said who it is."""
TOKEN_CHARACTERS_MAX: Final = 4096
"""The token that a joining node shows."""
REAPED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The bytes that a reaper without a limit gets at a time."""
CHANGES_MAX: Final = 10_000
"""The changes in one answer to a watcher."""
CHANGES_BYTES_MAX: Final = 4 * 1024 * 1024
"""No more commits join an answer to a watcher that has grown past this.

With the largest commit it fits a frame.
"""
PREFETCHED_BYTES_MAX: Final = 1024 * 1024
"""The size up to which a batch of a Spark stream goes to Spark with its plan.

It then passes through the driver's memory. A larger one is read by tasks.
"""
LIST_MAX: Final = 8192
"""Entries in one answer, whatever is asked for: no turn is longer than that."""

# --- between nodes --------------------------------------------------------------------------------

PEER_FRAME_BYTES_MAX: Final = 40 * 1024 * 1024
"""A frame between nodes: a longer one is refused before it is read.

The largest entry, or chunk, goes with what has gathered before it.
"""
PEER_FRAME_ITEMS_MAX: Final = 65_536
"""Items of MessagePack in such a frame; with more it is refused before it is decoded.

The objects of such a frame take some mebibytes besides its bytes.
"""
PEER_FRAME_DEPTH_MAX: Final = 16
"""The nesting depth of these items: six are used."""
PEER_FRAME_MESSAGES_MAX: Final = 4096
"""The messages in a frame between nodes."""
APPENDED_ENTRIES_MAX: Final = 16_384
"""The entries in one message between nodes."""
RECEIVED_STEPS_MAX: Final = 16_384
"""Steps of a turn for taking in what peers send; at least a part of a frame is."""
RECEIVED_FRAME_STEPS: Final = 64
"""The cost of a frame of a peer in steps, whatever is in it."""
RECEIVED_MESSAGE_STEPS: Final = 8
"""The cost of each message in it in steps. An item, or an entry, costs one."""
PEER_MESSAGE_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX + 1024 * 1024
"""A message of a peer that carries such frames."""
PEER_UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes from one peer that the node has not taken yet; beyond it the stream is not read."""
PEER_QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Frames that wait for one peer. Beyond it frames are dropped, which consensus repeats."""
CALL_BYTES_MAX: Final = 9 * 1024 * 1024
"""A frame with a call from one range to another, or with its answer."""
CALLS_UNDER_WAY_BYTES_MAX: Final = 16 * 1024 * 1024
"""The calls of a node to one other node that have no answer yet: more fail at once."""
CALLS_SERVED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The calls of other nodes that a node has not answered yet: more fail at once."""
CALLS_READ_BYTES_A_TURN: Final = 2 * 1024 * 1024
"""The calls after which a turn takes in no more frames."""
CALLS_TOGETHER_BYTES_MAX: Final = 256 * 1024
"""The calls and answers that share a frame, unless one alone is larger."""
CALLS_KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""The frames of consensus among which a turn looks for calls."""
READ_AHEAD_SECONDS_MAX: Final = 86_400.0
"""The lead of a timestamp over the clock of a range up to which a read may wait for the clock."""
CALL_CLOCK_OFFSET_SECONDS_MAX: Final = 1000 * 365 * 86400.0
"""The lead of another node's clock that a call cannot have: it would use up all timestamps."""
NODE_ANSWER_BYTES_MAX: Final = 1024 * 1024
"""The answer to a question of another node: who it is, whether it may join."""
COMMAND_BYTES_MAX: Final = 32 * 1024 * 1024
"""One entry of the log: it is copied, sent and applied as a whole."""
CHUNK_BYTES_MAX: Final = COMMAND_BYTES_MAX + 64 * 1024
"""A chunk of a snapshot. Only one with a value this large reaches it."""
TERM_JUMP_MAX: Final = 2**24
INDEX_JUMP_MAX: Final = 2**48
"""The most terms and indices by which a message may be ahead of the known ones."""

# --- the nodes of a cluster -----------------------------------------------------------------------

MEMBERS_MAX: Final = 64
"""The members of one group, learners included: their record travels with each snapshot."""
VOTERS_MAX: Final = 7
"""The most voters: more would only make every write slower. Further nodes wait as learners."""
JOIN_ADDRESSES_MAX: Final = 64
"""The nodes that found a cluster together."""
ADDRESS_CHARACTERS_MAX: Final = 255
"""A node's address: about as long as names of hosts can be."""
LOCAL_NODES_MAX: Final = 9
"""A cluster on this machine, for trying: each node is a process."""
TOUR_RANGES_MAX: Final = 64
"""The ranges of the demonstration's store."""
SERVICE_ERROR_CHARACTERS_MAX: Final = 500
DAMAGE_CHARACTERS_MAX: Final = 500
TROUBLE_CHARACTERS_MAX: Final = 500
"""The error that the status shows of a failing service or queue, or of damaged data."""

# --- messages of inboxes --------------------------------------------------------------------------

INBOX_BACKOFF_SECONDS_MAX: Final = 300.0
"""The longest wait of a message that was postponed without a delay."""
DELAY_SECONDS_MAX: Final = 1e10
"""The longest delay; longer ones become as long as that: a timestamp has room for it."""
NUMBER_SECONDS_MAX: Final = 10 * 366 * 86400.0
"""The largest number that schedules something by a length: a larger one is seconds since 1970."""
LATER_SECONDS_MAX: Final = 2.0**36
"""The furthest that something may be scheduled: 2,000 years; timestamps have room for it."""
WAIT_SECONDS_MAX: Final = 1e9
"""The longest wait, thirty years: what threads and event loops can wait for."""
BURIED_FROM_MAX: Final = 1_000_000
LETTERS_MAX: Final = 1_000_000
"""The messages of an inbox, or dead letters, that commands search for given ids."""
IMAGE_NAME_BYTES_MAX: Final = 4 * KEY_BYTES_MAX
"""The name of a part of an image of the store: an escaped key and its surrounding text."""

# --- staged rows ----------------------------------------------------------------------------------

STAGED_CHUNKS_MAX: Final = 1 << 20
"""The chunks of one task attempt: their numbers have room in a key."""
STAGED_WINNERS_MAX: Final = 100_000
"""Task attempts that one batch consists of: they are one record."""
STAGED_COUNTED_MAX: Final = 10_000
"""The length of lists in ``db.staging``."""
STAGED_UNFINISHED_MAX: Final = 100
"""The queries with an unfinished batch that one answer tells."""
LOAD_CUTS_MAX: Final = 256
"""The cuts at which a span is split before a bulk load."""
LOADS_MAX: Final = 1000
"""The bulk loads that a range remembers: all of them go along when it splits."""

ATTEMPTS_MAX_DEFAULT: Final = 16
"""The failures after which a message of a queue, or of an inbox with a worker, is dead.

It holds without another setting. With the growing back-off that takes some hours in a queue, and
three quarters of an hour in an inbox.
"""

GRANTS_MAX: Final = 10_000
"""The grants of rights to clients: they are one record, which each node has in memory."""
GRANTS_BYTES_MAX: Final = 1024 * 1024
"""The size of that record, which is written again with each change."""
CLIENT_NAME_CHARACTERS_MAX: Final = 256
"""The name of a token or certificate to which rights are granted."""
AUDITED_CHANGES_MAX: Final = 1_000
"""The changes of grants in the audit log; a newer one replaces the oldest."""
AUDITED_REFUSALS_MAX: Final = 1_000
"""The refusals in the audit log, which are counted, and never take the place of changes."""
AUDITED_ACTIONS_MAX: Final = 1_000
"""The actions on the pages in the audit log, which never take the place of changes or refusals."""
ACTIONS_TOLD_MAX: Final = 64
"""The actions that a process adds to the audit log at a time."""
AUDITED_CHARACTERS_MAX: Final = 400
"""The length of the description in an entry of the audit log."""
REFUSALS_TOLD_MAX: Final = 64
"""The different refusals that a node adds to the audit log at a time; others are counted only."""
REFUSALS_TOLD_PER_CLIENT_MAX: Final = 8
"""The different refusals of one client among these."""

# --- queues ---------------------------------------------------------------------------------------

QUEUE_NAME_BYTES_MAX: Final = 256
KIND_BYTES_MAX: Final = 256
QUEUE_ID_BYTES_MAX: Final = 512
GROUP_BYTES_MAX: Final = 256
"""Names, kinds, ids and groups of queue messages: they are parts of keys."""
PRIORITY_MAX: Final = 127
"""One byte in a key, with a sign."""
LEASE_SECONDS_MAX: Final = 366 * 86400.0
"""The time after which a lease ends at the latest, whatever was asked for."""
QUEUE_LEASED_MAX: Final = 100_000
"""Messages of a queue that are leased at a time in one range: they are in memory."""
SLOTS_MAX: Final = 1_000_000_000
"""The greatest ``max_concurrency`` of a queue; a greater ``max_rate`` is refused, too."""
QUEUE_BACKOFF_SECONDS_MAX: Final = 3600.0
"""The longest wait after an attempt that failed, without settings of its queue."""
QUEUE_SETTING_SECONDS_MAX: Final = 366 * 86400.0
QUEUE_CACHE_SIZE_MAX: Final = 1_000_000
QUEUE_BATCH_SIZE_MAX: Final = 8192
"""The settings of a queue: seconds, messages in memory, messages of one claim."""
FOLLOWERS_MAX: Final = 100
"""The ``when_done`` actions of one group: they are kept in one record."""
FOLLOWERS_BYTES_MAX: Final = 2 * VALUE_BYTES_MAX
"""The record of these: it is written again when a message of the group ends."""
QUEUE_IDS_MAX: Final = 1000
"""The ids of messages of a queue for whose homes a client asks at a time."""
IN_HAND_MAX: Final = 1000
"""The attempts that a consumer without credit asks for at a time."""
GROUP_BUCKETS_MAX: Final = 10_000
"""Groups whose pace a queue remembers; the first message of a new group does not wait."""
SCHEDULES_MAX: Final = 1000
"""The schedules of one queue."""

# --- clients --------------------------------------------------------------------------------------

CLIENT_QUEUE_MAX: Final = 10_000
CLIENT_WAITS_MAX: Final = 10_000
LOOKED_FOR_AT_ONCE: Final = 50
"""The lost claims whose messages a client looks for at a time, in all ranges."""
"""Requests that wait in a client for a leader, or at nodes for an event."""
CACHED_RANGES_MAX: Final = 100_000
REFUTED_RANGES_MAX: Final = 1_000
"""Descriptors of ranges that a client keeps, and those that it remembers as refuted."""
NODE_MISTAKES_MAX: Final = 3
"""Refuted descriptors of a node after which a client does not listen to it."""
WRONG_RANGES_MAX: Final = 4
"""Times that a call may be refused as one for another range before it pauses."""
SPLIT_HELD_UP_MAX: Final = 2000
"""The number of messages that hold up inboxes, and that a split moves."""
SPLITS_DURING_CALL_MAX: Final = 10
"""Times that an embedded store sends a request again because its range has split meanwhile."""
LEARNING_TRIES_MAX: Final = 12
LEARNING_PAUSE_SECONDS_MAX: Final = 1.0
"""The tries of a request at a range that has to learn of a queue, and the longest pause."""
RETRY_SECONDS_MAX: Final = 60.0
"""The time for which ``run`` tries again, unless told otherwise."""
RETRY_BACKOFF_SECONDS_MAX: Final = 1.0
"""The longest pause between two tries of a transaction."""
WORKER_BACKOFF_SECONDS_MAX: Final = 300.0
"""The time for which a worker leaves an inbox alone whose function fails."""
BRIDGING_THREADS_MAX: Final = 256
"""Answers that threads wait for at a time on behalf of a worker's loop."""
METRICS_QUEUES_MAX: Final = 100
"""The queues of which metrics tell."""
METRICS_REPORTS_MAX: Final = 800
"""The reports of queues in ranges that metrics are made of."""
METRICS_KINDS_MAX: Final = 50
"""The kinds of a queue's messages whose failures metrics tell apart."""
METRICS_CONNECTIONS_MAX: Final = 64
"""The connections of scrapers; the oldest one ends for one more."""
METRICS_REQUEST_BYTES_MAX: Final = 16 * 1024
"""The head of a scraper's request."""
METRICS_SECONDS_MAX: Final = 5.0
"""The time in which a scraper must send its request and take its answer."""
QUEUES_SHOWN_MAX: Final = 20
"""The queues that ``status`` shows: each is a question to the store."""
RECEIPT_BYTES_MAX: Final = 32_768
"""The receipt of a message that a consumer holds: it has a kind, an id and a key."""
EVALUATED_AT_ONCE_MAX: Final = 256
"""The messages, named by one write, up to which it is evaluated in one go."""
SCAN_CURSOR_BYTES_MAX: Final = 2 * IMAGE_NAME_BYTES_MAX + 32
"""The cursor from which a scan of records goes on: the name of an entry, which a trail escapes."""
TABLE_NAME_CHARACTERS_MAX: Final = 32
"""The name of a table of records, or of one of its columns."""
SCAN_COLUMNS_MAX: Final = 32
"""The columns that a scan of records asks for."""
