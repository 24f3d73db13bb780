"""Every request with every verb: a request is allowed with exactly the right verbs and places."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.messaging.bulk_requests import TABLES, ScanRecords
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings, UpdateQueue
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.requests import EnqueueUpdate
from postroom.protocol.requests import REQUESTS, name_of
from postroom.ranges.access import GrantRights, ReadGrants, RevokeRights, granted_by
from postroom.ranges.contract import Maintenance, Request, Role
from postroom.ranges.requests import (
    Accounting,
    CommitTransaction,
    Increment,
    Protect,
    Put,
    Scan,
)
from postroom.ranges.rights import EVERY_QUEUE, EVERY_VERB, Granted, Rights, Verb
from postroom.server.cluster.access import ALLOWED
from tests.protocol.test_contract import keys_of, sample

TABLE: Final = """
get                   read             keys
get_for_update        read write       keys
lock                  write            keys
get_many              read             keys
scan                  read             keys
reverse_scan          read             keys
scan_changes          read             keys
refresh               read             keys
read_accounting       read             keys
read_partitions       read             keys
peek                  read|reap        keys
list_inboxes          read|reap        keys
reap_queue            reap             keys
now                   -                nothing
protect               -                nothing
unprotect             -                nothing
release_locks         -                nothing
release_whole         -                nothing
commit                read write       keys
put                   write            keys
conditional_put       read write       keys
increment             read write       keys
delete                write            keys
delete_range          read write       keys
accounting            write            keys
enqueue_message       send             keys
enqueue_update        write            keys
reap_messages         reap             keys
postpone_messages     reap             keys
bury_messages         reap             keys
check_inbox           read|reap        keys
enqueue               enqueue          queue
acknowledge           work             queue
reject                work             queue
keep_result           work             queue
extend                work             queue
claim_queue           work             queue
reschedule            write            queue
cancel_messages       write            queue
replay_messages       write            queue
trim_archive          write            queue
set_schedule          write            queue
drop_queue            write            queue
create_queue          write enqueue    queue
update_queue          write            queue
when_done             enqueue          queue
read_queues           read|write|enqueue|work  queue
read_queue_message    read             queue
find_homes            read|write|work  queue
find_range_starts     read|write|work  queue
list_queue_messages   read             queue
read_result           read             queue
list_group_results    read             queue
read_schedules        read             queue
read_queue_stats      read             queue
scan_records          read             everything
be_still              read             everything
protect_whole         read             everything
list_ranges           read             everything
list_dead_letters     read             everything
list_scheduled        read             everything
trace_message         read             everything
find_commits          read             everything
read_counters         read             everything
await_quiet           read             everything
read_positions        read             everything
read_nodes            read             everything
describe_node         read             everything
read_staging          read             everything
read_restore          read             everything
check_image           read             everything
read_trail            read             everything
replay_dead_letters   write            everything
discard_dead_letters  write            everything
cancel_scheduled      write            everything
keep_position         write            everything
stage_rows            write send enqueue  everything
publish_staged        write            everything
apply_staged          write            everything
abort_staged          write            everything
sweep_staged          write            everything
forget_query          write            everything
begin_load            write            everything
load_rows             write            everything
end_load              write            everything
move_lease            admin            everything
new_range_id          admin            everything
read_settings         admin            everything
change_setting        admin            everything
prepare_split         admin            keys
await_split           admin            keys
cancel_split          admin            keys
retire_node           admin            everything
rebind_node           admin            everything
begin_restore         admin            everything
restore_entries       admin            everything
end_restored_part     admin            everything
end_restore           admin            everything
abandon_restore       admin            everything
keep_trail            admin            everything
grant_rights          admin            queue
revoke_rights         admin            queue
read_grants           admin            keys
read_audit_log        admin            everything
note_actions          admin            everything
"""
"""Each request of a client, the verbs that it needs (``|``: one of them), and on what."""

KINDS: Final = (*REQUESTS.asked, *REQUESTS.writes)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=name_of)
every_verb = pytest.mark.parametrize("verb", Verb, ids=lambda verb: str(verb.name))


class Row:
    """A row of the table."""

    def __init__(self, line: str) -> None:
        self.name, *verbs, self.place = line.split()
        self.verbs = (
            [] if verbs == ["-"] else [Verb.named(each.replace("|", ",")) for each in verbs]
        )


ROWS: Final = {row.name: row for row in map(Row, TABLE.strip().splitlines())}


def places(kind: type[Request], place: str) -> list[tuple[bytes, str]]:
    """Return the prefixes and queues on which a request needs something."""
    if place == "everything":
        return [(b"", ""), (b"", EVERY_QUEUE)]
    request = sample(kind)
    if place == "queue":
        names = [name for name in ("queue", "name") if name in kind.__struct_fields__]
        return [*((b"", getattr(request, name)) for name in names), (b"", "dead_letter_queue")]
    if kind is ReadGrants:
        return [(b"prefix", "")]
    found = keys_of(request)
    writes = (b"a write", b"a write/") if kind is CommitTransaction else ()
    return [(each, "") for each in (*found.keys, *(start for start, _ in found.spans), *writes)]


def granted(kind: type[Request], verbs: int) -> Rights:
    """Return the rights with some verbs on all that a request needs."""
    place = ROWS[name_of(kind)].place
    return Rights(Granted(verbs, *each) for each in places(kind, place)) if verbs else Rights([])


def choices(row: Row) -> Iterator[Verb]:
    """Yield the least sets of verbs that are enough."""
    for first in [each for each in Verb if each & row.verbs[0]] if row.verbs else [Verb(0)]:
        rest = Verb(0)
        for each in row.verbs[1:]:
            rest |= each
        yield first | rest


def test_the_table_has_a_row_for_every_request_of_a_client() -> None:
    assert sorted(ROWS) == sorted(map(name_of, KINDS)), "say which rights the new request needs"


@every_kind
@every_verb
def test_a_verb_alone_allows_a_request_that_needs_no_other(kind: type[Request], verb: Verb) -> None:
    needed = ROWS[name_of(kind)].verbs
    is_enough = all(verb & each for each in needed)
    assert (granted(kind, verb).lacks(sample(kind)) is None) == is_enough


@every_kind
def test_a_request_is_allowed_with_exactly_its_verbs(kind: type[Request]) -> None:
    row = ROWS[name_of(kind)]
    for enough in choices(row):
        assert granted(kind, enough).lacks(sample(kind)) is None
        for verb in Verb:
            if verb & enough:
                assert granted(kind, enough & ~verb).lacks(sample(kind)) is not None
    too_few = EVERY_VERB & ~row.verbs[0] if row.verbs else EVERY_VERB
    assert (granted(kind, too_few).lacks(sample(kind)) is None) == (not row.verbs)


@every_kind
def test_rights_elsewhere_do_not_allow_a_request(kind: type[Request]) -> None:
    elsewhere = Rights([Granted(EVERY_VERB, b"elsewhere/"), Granted(EVERY_VERB, b"", "elsewhere")])
    allowed = elsewhere.lacks(sample(kind)) is None
    assert allowed == (ROWS[name_of(kind)].place == "nothing")


@every_kind
def test_a_request_about_everything_needs_every_key_and_every_queue(kind: type[Request]) -> None:
    if ROWS[name_of(kind)].place == "everything":
        keys_alone, queues_alone = Granted(EVERY_VERB), Granted(EVERY_VERB, queue=EVERY_QUEUE)
        assert Rights([keys_alone, queues_alone]).lacks(sample(kind)) is None
        assert Rights([keys_alone]).lacks(sample(kind)) is not None
        assert Rights([queues_alone]).lacks(sample(kind)) is not None


@pytest.mark.parametrize("role", [Role.READ, Role.WRITE, Role.ADMIN])
@every_kind
def test_a_role_is_a_grant_of_all_that_it_allows(kind: type[Request], role: Role) -> None:
    allowed = kind in ALLOWED[role] if kind in REQUESTS.asked else role is not Role.READ
    if allowed:
        assert Rights(granted_by(role)).lacks(sample(kind)) is None


def test_the_requests_of_services_are_refused_whatever_is_granted() -> None:
    assert not any(issubclass(kind, Maintenance) or kind.role is None for kind in KINDS)
    assert all(kind not in ALLOWED[Role.ADMIN] for kind in REQUESTS.all if kind.role is None)


# --- those that need more than the table tells ----------------------------------------------------

SHOP: Final = Rights([Granted(EVERY_VERB, b"shop/"), Granted(EVERY_VERB, b"", "emails")])


def commit(*writes: Any, anchor: bytes = b"", **read: Any) -> CommitTransaction[Any]:
    return CommitTransaction(
        bytes(16), 1, 1.0, 0, anchor or writes[0].anchor(), read.get("reads", []),
        read.get("spans", []), [*writes],
    )  # fmt: skip


def test_a_transaction_is_refused_as_a_whole() -> None:
    inside, outside = Put(b"shop/a", b""), Put(b"other", b"")
    assert SHOP.lacks(commit(inside)) is None
    assert SHOP.lacks(commit(inside, outside)) == "'write' on the key b'other'"
    assert SHOP.lacks(commit(inside, reads=[b"other"])) == "'read' on the key b'other'"
    assert SHOP.lacks(commit(inside, spans=[(b"shop", b"shop0")])) is not None


def test_the_record_of_a_transaction_lies_beside_a_key_that_it_may_touch() -> None:
    assert SHOP.lacks(commit(Put(b"shop/a", b""), anchor=b"other")) is not None
    assert SHOP.lacks(commit(Put(b"shop/a", b""), anchor=b"shop/b")) is None


@pytest.mark.parametrize(
    ("start", "end", "is_within"),
    [
        (b"shop/", b"shop0", True),
        (b"shop/a", b"shop/b", True),
        (b"shop/", b"shop/", True),
        (b"shop/", b"shop00", False),
        (b"shop/", None, False),
        (b"shop", b"shop0", False),
        (b"", None, False),
        (b"shop0", b"shop/", False),
    ],
)
def test_a_span_lies_within_a_prefix(start: bytes, end: bytes | None, is_within: bool) -> None:
    assert (SHOP.lacks(Scan(start, end, 0, 1, 1)) is None) == is_within


def test_a_prefix_of_the_last_bytes_has_no_end() -> None:
    rights = Rights([Granted(Verb.READ, b"\xff\xff")])
    assert rights.lacks(Scan(b"\xff\xff", None, 0, 1, 1)) is None
    assert rights.lacks(Scan(b"\xff", None, 0, 1, 1)) is not None
    after = Rights([Granted(Verb.READ, b"a\xff")])
    assert after.lacks(Scan(b"a\xff", b"b", 0, 1, 1)) is None
    assert after.lacks(Scan(b"a\xff", b"b\x00", 0, 1, 1)) is not None


def test_overlapping_grants_add_up() -> None:
    rights = Rights([
        Granted(Verb.READ, b""), Granted(Verb.READ, b"a/b/"), Granted(Verb.WRITE, b"a/"),
        Granted(Verb.WRITE, b"a/b/"), Granted(Verb.WRITE, b"c"),
    ])  # fmt: skip
    assert rights.lacks(Increment(b"a/z")) is None, "a longer prefix hides no shorter one"
    assert rights.lacks(Increment(b"cc")) is None
    assert rights.lacks(Increment(b"b")) == "'write' on the key b'b'"
    assert rights.lacks(Scan(b"", None, 0, 1, 1)) is None


def test_a_deferred_update_tells_its_client_nothing_and_needs_no_right_to_read() -> None:
    writer = Rights([Granted(Verb.WRITE, b"shop/")])
    assert writer.lacks(Increment(b"shop/a")) is not None
    assert writer.lacks(EnqueueUpdate(Increment(b"shop/a"))) is None


def test_accounting_needs_the_right_to_all_that_its_sums_are_sums_of() -> None:
    assert SHOP.lacks(Accounting(b"shop/a", {})) is None, "shop sums up what is in shop/"
    lower = Rights([Granted(Verb.WRITE, b"shop/eu/")])
    assert lower.lacks(Accounting(b"shop/eu/a", {})) == "'write' on the key b'shop/'"


def test_a_queue_that_gets_dead_messages_is_one_to_enqueue_in() -> None:
    for request in (
        CreateQueue("emails", QueueSettings(dead_letter_queue="others")),
        UpdateQueue("emails", {"dead_letter_queue": "others"}),
    ):
        assert SHOP.lacks(request) == "'enqueue' on the queue 'others'"
    assert SHOP.lacks(UpdateQueue("emails", {"dead_letter_queue": None})) is None


def test_all_queues_are_listed_with_a_right_to_every_queue() -> None:
    assert SHOP.lacks(ReadQueues()) is not None
    assert SHOP.lacks(ReadQueues(EVERY_QUEUE)) is not None, "it is a name as well"
    assert Rights([Granted(Verb.WORK, b"", EVERY_QUEUE)]).lacks(ReadQueues()) is None


def test_a_claim_for_all_ranges_of_a_node_needs_the_right_to_work_on_its_queue() -> None:
    claim = ClaimQueue("others", bytes(16), 1, ClaimSelection(), wait=True, at_node=True)
    assert SHOP.lacks(claim) == "'work' on the queue 'others'"
    assert Rights([Granted(Verb.WORK, b"", "others")]).lacks(claim) is None


def test_a_timestamp_that_keeps_everything_needs_the_right_to_read_it() -> None:
    assert SHOP.lacks(Protect()) is None
    assert SHOP.lacks(Protect(whole=True)) is not None


@pytest.mark.parametrize("table", TABLES)
def test_records_of_a_span_are_read_with_a_right_to_it_if_they_tell_of_nothing_else(
    table: str,
) -> None:
    of_keys = {"data", "changes", "inbox", "reaped", "accounting", "inbox_index"}
    missing = SHOP.lacks(ScanRecords(table, b"shop/", b"shop0", 1))
    assert (missing is None) == (table in of_keys)
    assert SHOP.lacks(ScanRecords(table, b"", None, 1)) is not None


def test_an_administrator_of_a_prefix_grants_within_it() -> None:
    every = int(EVERY_VERB)
    assert SHOP.lacks(GrantRights("eu", every, b"shop/eu/")) is None
    assert SHOP.lacks(GrantRights("eu", every, b"sho")) is not None
    assert SHOP.lacks(GrantRights("eu", every, b"", "emails")) is None
    assert SHOP.lacks(GrantRights("eu", every, b"", EVERY_QUEUE)) is not None
    assert SHOP.lacks(RevokeRights("eu", every, b"shop/eu/")) is None
    assert SHOP.lacks(RevokeRights("eu", every)) is not None, "that would be all of its grants"
    assert SHOP.lacks(RevokeRights("eu", every, None, "")) is not None
    assert SHOP.lacks(ReadGrants(b"shop/")) is None
    assert SHOP.lacks(ReadGrants()) is not None


@pytest.mark.parametrize("key", [b"", b"\x00", b"shop", b"SHOP/", "shöp/".encode(), b"\xff" * 8192])
def test_a_hostile_key_is_outside_of_a_prefix(key: bytes) -> None:
    missing = SHOP.lacks(Put(key, b""))
    assert missing is not None
    assert len(missing) < 300
    assert missing.isprintable()


# --- the bounds of ranges -------------------------------------------------------------------------

FIELDS: Final = Rights([Granted(Verb.SEND, b"m/"), Granted(Verb.READ, b"z/"), Granted(0, b"c")])


def shown(rights: Rights, *bounds: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return the ranges between some bounds as a client is told of them."""
    spans = pairwise((b"", *bounds, None))
    found = (rights.shown(start, end) for start, end in spans if start is not None)
    return [each for each in found if each is not None]


def test_a_bound_among_keys_of_others_is_shown_as_the_begin_of_the_next_prefix() -> None:
    bounds = (b"c", b"m/", b"m/3", b"m0", b"r", b"z/7", b"z0", b"zz")
    assert shown(FIELDS, *bounds) == [
        (b"", b"m/"), (b"m/", b"m/3"), (b"m/3", b"z/"), (b"z/", b"z/7"), (b"z/7", None),
    ]  # fmt: skip


def test_a_client_with_rights_on_queues_alone_is_shown_all_bounds() -> None:
    rights = Rights([Granted(EVERY_VERB, queue=EVERY_QUEUE)])
    assert shown(rights, b"c", b"m") == [(b"", b"c"), (b"c", b"m"), (b"m", None)]


def test_a_client_with_rights_on_every_key_is_shown_all_bounds() -> None:
    rights = Rights(granted_by(Role.READ))
    assert shown(rights, b"c", b"m") == [(b"", b"c"), (b"c", b"m"), (b"m", None)]


def test_a_client_behind_a_gateway_is_shown_the_bounds_that_both_may_know() -> None:
    rights = Rights(granted_by(Role.READ), Rights([Granted(Verb.READ, b"m/")]))
    assert shown(rights, b"c", b"m/3", b"r") == [(b"", b"m/"), (b"m/", b"m/3"), (b"m/3", None)]


def test_a_replica_without_keys_is_shown_to_nobody() -> None:
    assert FIELDS.shown(b"", b"") is None


KEYS: Final = st.binary(max_size=3)


@given(st.lists(KEYS.filter(bool), max_size=4), st.sets(KEYS.filter(bool), max_size=8))
def test_shown_ranges_have_all_keys_and_no_bound_that_is_a_key_of_others(
    prefixes: list[bytes], bounds: set[bytes]
) -> None:
    rights = Rights([Granted(Verb.READ, prefix) for prefix in prefixes])
    own = {each for each in bounds if any(map(each.startswith, prefixes))}
    found = shown(rights, *sorted(bounds))
    assert (found[0][0], found[-1][1]) == (b"", None)
    assert all(one[1] == other[0] for one, other in pairwise(found))
    assert own <= {start for start, _ in found} <= own | {b""} | set(prefixes)
    for key in own:  # the shown range of a key of its own is the range that contains it
        owner = max(each for each in (b"", *bounds) if each <= key)
        told = rights.shown(owner, min((each for each in bounds if each > key), default=None))
        assert told is not None
        assert told[0] <= key
        assert told[1] is None or key < told[1]
