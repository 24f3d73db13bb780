"""Every limit, in one place, with its unit last."""

from __future__ import annotations

from typing import Final

KEY_BYTES_MAX: Final = 8 * 1024
VALUE_BYTES_MAX: Final = 1024 * 1024
MESSAGE_BYTES_MAX: Final = 1024 * 1024
TRANSACTION_BYTES_MAX: Final = 16 * 1024 * 1024
TRANSACTION_SECONDS_MAX: Final = 60.0
REAPED_BYTES_DEFAULT: Final = TRANSACTION_BYTES_MAX // 2
"""A reap that names no number of bytes takes no more: its transaction must be able to commit it."""

PEEKED_MESSAGES_MAX: Final = 10_000
"""Of one inbox, by one ``peek`` of a transaction: the commit looks at each of them once more."""

CLOCK_OFFSET_SECONDS_MAX: Final = 0.5
"""How far the clocks of two nodes may stand apart (``max_offset``)."""

GC_TTL_SECONDS: Final = 60.0
"""How long a version that was overwritten can still be read."""

SYNC_INTERVAL_SECONDS: Final = 0.05
"""With ``durability="interval"``: how much a loss of power may cost."""

PROPOSAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""No more requests join a proposal that has grown past this."""

UPKEEP_BYTES: Final = 2 * 1024 * 1024
"""Of that, what deliveries, updates and the collection of garbage have for themselves."""

FEED_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is kept of the last changes for those who watch them."""

MEMORY_BYTES: Final = 128 * 1024 * 1024
"""The budget of memory that a store has unless it is given another one (``kv/budget.py``)."""
MEMORY_BYTES_MIN: Final = 8 * 1024 * 1024
WRITE_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one memtable: opening after a crash reads that much again."""

DISK_RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Writes are refused before the device is fuller than this: a full disk would stop the store."""

HELLO_SECONDS: Final = 5.0
"""A caller must have agreed on TLS, and have said who it is, in this time after it connects."""
CONNECTIONS_MAX: Final = 10_000
"""Of a node, or fewer, so that descriptors are left for storage (``DESCRIPTORS_RESERVED``)."""
CONNECTIONS_PENDING_MAX: Final = 1_000
CONNECTIONS_PENDING_PER_HOST_MAX: Final = 128
"""Connections that have not said who they are. Of those, the oldest is dropped for a newer one."""
UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of frames of clients that have come in part: beyond it the stream that is slowest ends."""
DESCRIPTORS_RESERVED: Final = 256
"""File descriptors that connections leave to storage, to the log, and to the node's own calls."""
LOG_SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""Of a segment of the log. Two are in use as a rule, more while followers lag."""

LOG_SEGMENT_BYTES_MIN: Final = 64 * 1024

CLAIMED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of messages that reapers have found and not consumed yet, which a range keeps in memory."""

READ_AHEAD_BYTES_MAX: Final = 64 * 1024
"""Of messages of one inbox that a range has read for reapers still to come."""
READ_AHEAD_INBOXES_MAX: Final = 16
"""Of so many inboxes: those that were reaped last."""

FULL_DEVICE_BYTES_MAX: Final = 32 * 1024 * 1024
FULL_DEVICE_KEYS_MAX: Final = 200_000
"""So much stays in memory while the device is full. With more the storage stops."""

GATHERED_KEYS_MAX: Final = 1024
GATHERED_BYTES_MAX: Final = 1024 * 1024
"""What several turns have written into the state becomes one batch when it is more than that."""

QUEUE_EPOCH_MAX: Final = 1_000_000_000
"""Nobody may say that a message of a queue was fired more often."""
REASON_CHARACTERS_MAX: Final = 1000
"""Of why something failed, which is kept with it."""

HEADERS_BYTES_MAX: Final = 64 * 1024
"""Of the headers of one message, packed."""
HEADERS_BYTES_PER_STEP: Final = 16
"""Checking so many bytes of them costs a step of a turn."""
HEADERS_DEPTH_MAX: Final = 16
"""How deep headers may be nested: the dictionary itself is one."""
DEPTH_MAX: Final = 128
"""How deep a value or a payload may be nested that a codec packs: what was sent can be read."""

PREFIXES_MAX: Final = 32
"""Into how many prefixes the key of an ``Accounting`` may fall."""
METRICS_MAX: Final = 64
"""How many metrics one ``Accounting`` may add to."""
METRIC_BYTES_MAX: Final = 256
"""Of the name of a metric, in UTF-8."""
METRICS_PER_PREFIX_MAX: Final = 1024
"""How many metrics a prefix may have: their sums are one record, which is written as a whole."""

TURN_STEPS_MAX: Final = 8192
"""How much is evaluated in one turn of the node, in steps: about so many keys are visited. What
takes more goes on with the next turn."""
INTAKE_STEPS_MAX: Final = 2048
"""So many steps of a turn, besides, are spent on taking in what clients send."""
FRAME_STEPS: Final = 4
"""Of these, what a frame costs, whatever is in it."""
FRAME_AT_ONCE_BYTES: Final = 16 * 1024
"""A longer frame is decoded a few requests at a time."""
FRAME_BYTES_PER_STEP: Final = 512
"""So many bytes of it cost one more, whenever they are gone over."""
DECODED_BYTES_PER_STEP: Final = 2048
"""So many bytes of memory that a request takes cost one more."""
REQUEST_STEPS: Final = 4
"""What a request costs, besides the keys that it visits."""
DESCRIPTION_STEPS: Final = 512
"""What it costs that a node tells how it is: it asks the device, and the engine."""
WELCOME_STEPS: Final = 16
"""What it costs to tell a client who leads, and which nodes there are."""
COMPLETED_AT_ONCE_MAX: Final = 32_768
"""Of a proposal with more writes, so many are listed as garbage, and encoded, in one turn."""
READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""No more joins one answer that has grown past this, whatever its request asks for."""
DELIVERED_AT_ONCE_MAX: Final = 10_000
"""So many messages are delivered in the proposal that sends them; the others go to the outbox."""
EXECUTED_AT_ONCE_MAX: Final = 16_384
"""The same of deferred updates: more than a turn brings, for most are numbers to be added up."""
TRANSACTION_STEPS_MAX: Final = 1_000_000
"""What checking and carrying out one transaction may take, over all its turns: others that want to
write wait for it."""
DELETED_AT_ONCE_MAX: Final = 2000
"""A deferred ``DeleteRange`` removes so many keys in one step."""
DELETED_TOGETHER_MAX: Final = 20_000
"""``db.delete_range`` removes about so many keys in one transaction, and goes on with the next."""
INBOXES_LISTED_MAX: Final = 10_000
INBOXES_LISTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one span, by one request: inboxes, and bytes of their keys."""
INBOXES_BY_KEY_MAX: Final = 2000
"""Of the first inboxes by their keys, in one answer: these keys take 16 MiB at most."""
INBOXES_ORDERED_MAX: Final = 65_536
INBOXES_ORDERED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Those with the oldest messages are kept in their order in memory. Half of either is at least as
much as one answer holds."""
ENGINE_SNAPSHOTS_MAX: Final = 16
"""Timestamps that are protected as a whole at a time: each holds back compaction."""
ENGINE_SNAPSHOTS_PER_HOST_MAX: Final = 12
"""Of these, for all clients of one host. One client has no more than it leaves to others."""
POSITIONS_MAX: Final = 1000
"""Named positions that a range keeps."""
POSITIONS_SHOWN_MAX: Final = 20
"""So many of them are shown by ``postroom status``, and all with ``--json``."""
POSITION_NAME_CHARACTERS_MAX: Final = 128
POSITION_SECONDS: Final = 86_400.0
POSITION_SECONDS_MAX: Final = 7 * 86_400.0
"""A position is kept for a day, or for as long as its reader says; for a week at most."""
PARTITIONS_MAX: Final = 1024
"""Into how many parts one answer divides a span."""
PARTITION_BYTES_MIN: Final = 64 * 1024
EXPANSION_BYTES_MAX: Final = 4 * 1024 * 1024
"""No more updates join a step of the executor whose sums take so much already."""
EXPANSION_METRICS_MAX: Final = 16_384
"""The same of metrics of prefixes."""
GARBAGE_LIST_KEYS_MAX: Final = 2000
GARBAGE_LIST_BYTES_MAX: Final = 1024 * 1024
"""Of one list of garbage; a proposal may leave several."""

STAGED_QUERY_BYTES_MAX: Final = 512
"""Of the name of a query, or of a bulk load, that stages rows."""
STAGED_CHUNK_BYTES_MAX: Final = VALUE_BYTES_MAX + 256 * 1024
"""Of a chunk of staged rows: room for the largest row, with its key and its headers."""
STAGED_STEP_ROWS_MAX: Final = 8192
STAGED_STEP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of staged rows, and what they overwrite, that are published in one step, so all at once."""
STAGED_DELETED_AT_ONCE_MAX: Final = 512
"""So many chunks of staged rows are deleted in one step."""
STAGED_SWEPT_AT_ONCE_MAX: Final = 500
"""So many records of staging are looked at in one step of sweeping."""
STAGED_SECONDS_MAX: Final = 24 * 3600.0
"""What was staged, and not published since, is dropped by whoever publishes next."""

RESTORED_CHUNK_ROWS_MAX: Final = 8192
"""Of a chunk of entries of an export that is restored; its bytes count as a transaction's do."""
RESTORED_PARTS_MAX: Final = 10_000
"""Into how many parts, files say, what is restored is divided."""
RESTORED_HELD_MAX: Final = 50_000
"""Of a holding in an export: so many messages were given to a consumer at once. (A step of a queue
gives out 2,000.)"""
RESTORED_AHEAD_SECONDS_MAX: Final = 24 * 3600.0
"""How far the clock of what is restored may be ahead of the store's own."""
COUNTED_SECONDS_MAX: Final = 3600.0
"""How long a node may count all entries: a million take a few seconds."""
RESTORE_REMOVED_AT_ONCE_MAX: Final = 2000
"""Of a restore that is abandoned, so many entries are removed in one step."""

LOCK_WAIT_SECONDS_MAX: Final = 10.0
"""How long a commit waits for locks of others: its client, which waits for ``REQUEST_SECONDS``, is
told in time."""
LOCKS_AT_ONCE_MAX: Final = 128
"""How many keys, and how many spans, a request locks, and an error names."""
LOCKS_MAX: Final = 10_000
"""How many keys and spans a transaction locks. ``TRANSACTION_BYTES_MAX`` of memory is the other
limit."""
LOCKED_SPANS_MAX: Final = LOCKS_AT_ONCE_MAX
"""How many of these are spans: each costs everybody who locks or deletes a span."""
LOCK_BYTES: Final = 256
"""What a lock takes in memory besides its key."""
LOCKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of memory for the locks of a range; when there is no more, each client still has its share."""

REQUEST_SECONDS: Final = 15.0
"""How long a request is tried again before its caller is told: long enough for an election, a lease
to run out and a rolling restart."""

FRAME_STRETCH_BYTES: Final = 256 * 1024
"""A longer frame of a client's is decoded over several turns, about so much in each."""
FRAMES_DECODED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all frames that are being decoded so: a client that sends one more is told to come back."""
DECODED_TIMES_MAX: Final = 8
"""A request takes so many times its bytes in memory at most (or ``DECODED_BYTES_MIN``)."""
DECODED_BYTES_MIN: Final = 16 * 1024 * 1024
DECODED_BYTES_MAX: Final = 96 * 1024 * 1024
"""Of memory for one request, whatever its bytes."""
DECODED_BYTES_ALL: Final = 128 * 1024 * 1024
"""Of memory for the requests under way of all clients; when there is no more, each client still has
its share of as much again."""
REQUEST_ITEMS_MAX: Final = 1_000_000
"""Of any list in one request: keys to read, writes, ids."""

WORD_CHARACTERS_MAX: Final = 64
"""Of a word of a search index: a longer one is cut, in documents and in what is searched for."""
DOCUMENT_WORDS_MAX: Final = 10_000
"""Different ones, of a document in a search index."""
INDEXED_KEY_BYTES_MAX: Final = 2048
"""Of a document in a search index: its key is a part of the keys of its postings."""
SEARCH_NAME_BYTES_MAX: Final = 128
"""Of the name of a search index."""
SEARCHED_WORDS_MAX: Final = 32
"""Of one search."""
SEARCH_CANDIDATES_MAX: Final = 50_000
"""Documents that a search keeps in memory until it knows which are the best."""

# --- frames and streams ---------------------------------------------------------------------------

FRAME_BYTES_MAX: Final = 2 * TRANSACTION_BYTES_MAX
"""Of a client's frame: it holds at least the greatest transaction, whatever it is made of."""
NODES_TOLD_MAX: Final = 4096
"""In one Welcome."""
REQUESTS_PER_FRAME_MAX: Final = 4096
"""Of a client's frame. A node takes them on in one turn, as far as it has room."""
OPENING_BYTES_MAX: Final = 64 * 1024
"""Of a frame before its sender was let in, and has said who it is."""
TOKEN_CHARACTERS_MAX: Final = 4096
"""Of what a node that joins shows."""
REAPED_BYTES_MAX: Final = 16 * 1024 * 1024
"""A reaper that sets no limit gets so much at most at a time."""
CHANGES_MAX: Final = 10_000
"""In one answer to who watches."""
CHANGES_BYTES_MAX: Final = 4 * 1024 * 1024
"""No more commits join such an answer that has grown past this. With the largest one it fits a
frame."""
PREFETCHED_BYTES_MAX: Final = 1024 * 1024
"""A batch of a stream of Spark that is larger is read by tasks; a smaller one goes to Spark with
its plan, through the driver's memory."""
LIST_MAX: Final = 8192
"""So many entries fit into one answer, whatever is asked for: the turn is not longer than that."""

# --- between nodes --------------------------------------------------------------------------------

PEER_FRAME_BYTES_MAX: Final = 40 * 1024 * 1024
"""Of a frame between nodes: a longer one is refused before it is read. The largest entry, or chunk,
goes with what has gathered before it."""
PEER_FRAME_ITEMS_MAX: Final = 65_536
"""Of items of MessagePack in it: a frame with more is refused before anything is made of it. Its
objects take some mebibytes besides its bytes then."""
PEER_FRAME_DEPTH_MAX: Final = 16
"""How deep they may be nested: six are used."""
PEER_FRAME_MESSAGES_MAX: Final = 4096
"""Of messages in it."""
APPENDED_ENTRIES_MAX: Final = 16_384
"""Of entries in one message."""
RECEIVED_STEPS_MAX: Final = 16_384
"""So many steps of a turn are spent on taking in what peers send; at least a part of a frame is."""
RECEIVED_FRAME_STEPS: Final = 64
"""Of these, what a frame costs, whatever is in it."""
RECEIVED_MESSAGE_STEPS: Final = 8
"""What each message in it costs; and an item, or an entry, one."""
PEER_MESSAGE_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX + 1024 * 1024
"""Of what carries such frames."""
PEER_UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""What has come in from one peer and was not taken by the node yet; beyond it its stream is not
read."""
PEER_QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
"""What waits for one peer. Beyond it frames are dropped, which consensus repeats."""
NODE_ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Of the answer to a question that one node asks another: who it is, whether it may join."""
COMMAND_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one entry of the log: it is copied, sent and applied as a whole."""
CHUNK_BYTES_MAX: Final = COMMAND_BYTES_MAX + 64 * 1024
"""Of a snapshot. Chunks are far smaller, unless one value is this large: it came in one command."""
TERM_JUMP_MAX: Final = 2**24
INDEX_JUMP_MAX: Final = 2**48
"""How far a message may name terms and indices beyond what is known: nobody can have got there."""

# --- the nodes of a cluster -----------------------------------------------------------------------

MEMBERS_MAX: Final = 64
"""Of one group, learners included: their record travels with each snapshot."""
VOTERS_MAX: Final = 7
"""More would only make every write slower. Further nodes wait as learners."""
JOIN_ADDRESSES_MAX: Final = 64
"""Of nodes that found a cluster together."""
ADDRESS_CHARACTERS_MAX: Final = 255
"""Of a node's address: as long as names of hosts can be, about."""
LOCAL_NODES_MAX: Final = 9
"""Of a cluster on this machine, for trying: each is a process."""
SERVICE_ERROR_CHARACTERS_MAX: Final = 500
DAMAGE_CHARACTERS_MAX: Final = 500
TROUBLE_CHARACTERS_MAX: Final = 500
"""Of what the status tells of a service that fails, of damaged data, of a queue that fails."""

# --- messages of inboxes --------------------------------------------------------------------------

INBOX_BACKOFF_SECONDS_MAX: Final = 300.0
"""The longest wait of a message that was postponed without a delay."""
DELAY_SECONDS_MAX: Final = 1e10
"""Longer delays are as long as that: a timestamp has room for it."""
NUMBER_SECONDS_MAX: Final = 10 * 366 * 86400.0
"""How far ahead something may be scheduled by a number: a larger one is seconds since 1970."""
LATER_SECONDS_MAX: Final = 2.0**36
"""How far ahead something may be scheduled, two thousand years: a timestamp has room for it."""
WAIT_SECONDS_MAX: Final = 1e9
"""The longest wait, thirty years: what threads and event loops can wait for."""
BURIED_FROM_MAX: Final = 1_000_000
LETTERS_MAX: Final = 1_000_000
"""Commands look through so many messages of an inbox, or dead letters, for the ids given."""
IMAGE_NAME_BYTES_MAX: Final = 4 * KEY_BYTES_MAX
"""Of the name of what an image of the store holds: a key, escaped, and what stands around it."""

# --- staged rows ----------------------------------------------------------------------------------

STAGED_CHUNKS_MAX: Final = 1 << 20
"""Of one attempt: their numbers have room in a key."""
STAGED_WINNERS_MAX: Final = 100_000
"""Attempts that one batch consists of: they are one record."""
STAGED_COUNTED_MAX: Final = 10_000
"""How many of anything ``db.staging`` tells."""

ATTEMPTS_MAX_DEFAULT: Final = 16
"""A message of a queue, or one that a worker takes from an inbox, is dead after so many failures,
if nothing else was told. With the growing back-off that takes some hours; three quarters of an hour
in an inbox.
"""

# --- queues ---------------------------------------------------------------------------------------

QUEUE_NAME_BYTES_MAX: Final = 256
KIND_BYTES_MAX: Final = 256
QUEUE_ID_BYTES_MAX: Final = 512
GROUP_BYTES_MAX: Final = 256
"""Of names, kinds, ids and groups of queue messages: they are parts of keys."""
PRIORITY_MAX: Final = 127
"""One byte in a key, with a sign."""
LEASE_SECONDS_MAX: Final = 366 * 86400.0
"""A lease ends after so long at the latest, whatever was asked for."""
QUEUE_LEASED_MAX: Final = 100_000
"""So many messages of a queue are leased at a time in one range: they are in memory."""
QUEUE_BACKOFF_SECONDS_MAX: Final = 3600.0
"""The longest wait after an attempt that failed, without settings of its queue."""
QUEUE_SETTING_SECONDS_MAX: Final = 366 * 86400.0
QUEUE_CACHE_SIZE_MAX: Final = 1_000_000
QUEUE_BATCH_SIZE_MAX: Final = 8192
"""What the settings of a queue may be: seconds, messages in memory, messages of one claim."""
FOLLOWERS_MAX: Final = 100
"""``when_done`` of one group: they are kept in one record."""
FOLLOWERS_BYTES_MAX: Final = 2 * VALUE_BYTES_MAX
"""That record is written again whenever one of the group ends."""
IN_HAND_MAX: Final = 1000
"""A consumer without credit asks for so many of its attempts at a time."""
GROUP_BUCKETS_MAX: Final = 10_000
"""Groups whose pace a queue remembers; the first message of a group that is new does not wait."""
SCHEDULES_MAX: Final = 1000
"""Of one queue."""

# --- clients --------------------------------------------------------------------------------------

CLIENT_QUEUE_MAX: Final = 10_000
CLIENT_WAITS_MAX: Final = 10_000
"""How many requests may wait in a client for a leader, and at nodes for something to happen."""
RETRY_SECONDS_MAX: Final = 60.0
"""How long ``run`` tries again if it is not told."""
RETRY_BACKOFF_SECONDS_MAX: Final = 1.0
"""Its longest pause between two attempts."""
WORKER_BACKOFF_SECONDS_MAX: Final = 300.0
"""How long a worker leaves an inbox alone whose function fails."""
BRIDGING_THREADS_MAX: Final = 256
"""So many answers may be waited for at a time on behalf of a worker's loop."""
SEARCH_FIELDS_MAX: Final = 64
"""Of a search index."""
QUEUES_SHOWN_MAX: Final = 20
"""``status`` shows no more queues: each is a question to the store."""
