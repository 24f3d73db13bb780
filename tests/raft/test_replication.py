"""Ways of entries: sentences of the paper (sections 5.3, 5.4), and what pysyncobj gets wrong."""

from __future__ import annotations

from postroom.kv.memory import MemoryEngine
from postroom.raft.interface import RaftOptions
from postroom.raft.messages import Append, Appended
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import BYTES_A_TURN, Cluster
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers, command

A, B, C = (1, command(b"a")), (1, command(b"b")), (1, command(b"c"))


def test_a_follower_without_the_previous_entry_refuses() -> None:
    """Figure 2: "Reply false if log doesn't contain an entry at prevLogIndex"."""
    peers = ScriptedPeers()
    assert peers.ask(2, peers.append(1, (5, 1), A)) == [Appended(1, False, 0)]
    assert peers.log() == []


def test_a_conflicting_entry_is_removed_with_all_that_follow() -> None:
    """Figure 2: "delete the existing entry and all that follow it"."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B, C)))
    assert peers.ask(3, peers.append(2, (1, 1), (2, b"\0z"))) == [Appended(2, True, 2)]
    assert peers.log() == [(1, 1), (2, 2)]


def test_a_repeated_append_truncates_nothing() -> None:
    """Figure 2 removes only what conflicts; pysyncobj cuts after prevLogIdx on every append."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B, C)))
    assert peers.ask(2, peers.append(1, (0, 0), A)) == [Appended(1, True, 1)]
    assert peers.log() == [(1, 1), (2, 1), (3, 1)]


def test_a_delayed_heartbeat_truncates_nothing() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B, C, commit=2)))
    assert peers.ask(2, peers.append(1, (1, 1))) == [Appended(1, True, 2)]
    assert peers.ask(2, peers.append(1, (2, 1))) == [Appended(1, True, 2)]
    assert peers.log() == [(1, 1), (2, 1), (3, 1)]
    assert peers.group.applied_index == 2


def test_a_follower_commits_no_further_than_the_message_agrees() -> None:
    """Figure 2: "min(leaderCommit, index of last new entry)"; pysyncobj: of the last entry."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B, C)))
    assert peers.ask(3, peers.append(2, (1, 1), commit=3)) == [Appended(2, True, 1)]
    assert peers.group.applied_index == 1


def test_committed_entries_are_never_cut() -> None:
    """Section 5.4.3; an append from before them is answered with what is committed."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B, commit=2)))
    odd = peers.append(2, (0, 0), (2, b"\0odd"), (2, b"\0odd"), (2, b"\0new"))
    assert peers.ask(3, odd) == [Appended(2, True, 3)]
    assert peers.log() == [(1, 1), (2, 1), (3, 2)]


def test_a_refusal_skips_the_whole_conflicting_term() -> None:
    """Section 5.3: one refusal "for each term"; pysyncobj needs one for each entry."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(2, (0, 0), A, (2, b"\0p"), (2, b"\0q"), (2, b"\0r"))))
    assert peers.ask(3, peers.append(4, (4, 3))) == [Appended(4, False, 1)]


def test_a_leader_appends_an_entry_of_its_own_first() -> None:
    """Section 8: "each leader commit a blank no-op entry into the log at the start of its term"."""
    peers = ScriptedPeers()
    term = peers.lead()
    assert peers.log() == [(1, term)]


def test_a_leader_sends_what_it_was_given_and_commits_by_majority() -> None:
    """Section 5.3: "A log entry is committed once ... replicated it on a majority"."""
    peers = ScriptedPeers((1, 2, 3, 4, 5))
    assert peers.lead() == 1
    peers.acknowledge(2)
    assert peers.group.applied_index == 0
    peers.acknowledge(3)
    assert peers.group.applied_index == 1
    peers.propose(b"x")
    sent = [(to, what.entries) for to, what in peers.turn() if isinstance(what, Append)]
    assert sent == [(2, ((1, b"\0x"),)), (3, ((1, b"\0x"),))]
    peers.turn((2, Appended(1, True, 2)))
    assert peers.outcomes == []
    peers.acknowledge(4)
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_an_answer_of_an_earlier_term_is_not_counted() -> None:
    """pysyncobj's next_node_idx has no term, and counts for entries that were replaced since."""
    peers = ScriptedPeers()
    old = peers.lead()
    peers.propose(b"x")
    peers.turn()
    peers.turn((3, peers.append(old + 1, (0, 0), (old + 1, NOOP_PAYLOAD))))
    peers.now += 1.2
    new = peers.lead()
    assert new > old
    peers.turn((2, Appended(old, True, 2)))
    assert peers.group.core.commit_index == 0
    peers.turn((2, Appended(new, True, 2)))
    assert peers.group.core.commit_index == 2


def test_answers_of_strangers_are_not_counted() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    peers.turn((9, Appended(term, True, 1)))
    assert peers.group.core.commit_index == 0


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """Section 5.4.2 and figure 8."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B)))
    term = peers.lead()
    assert peers.log() == [(1, 1), (2, 1), (3, term)]
    peers.turn((2, Appended(term, True, 2)), (3, Appended(term, True, 2)))
    assert peers.group.core.commit_index == 0
    peers.turn((2, Appended(term, True, 3)))
    assert peers.group.core.commit_index == 3


def test_the_leader_brings_a_follower_to_its_own_log() -> None:
    """Section 5.3: "the leader handles inconsistencies by forcing the followers' logs"."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.settle()
    others = [each.node for each in cluster.followers()]
    cluster.network.partition([leader.node], others)
    lost = [cluster.propose(leader) for _ in range(3)]
    cluster.run_until(lambda: not leader.group.is_leader)
    cluster.elect()
    cluster.replicate(2)
    cluster.network.heal()
    cluster.settle()
    cluster.check_log_matching()
    cluster.check_state_machine_safety()
    assert {each.outcome for each in lost} <= {ProposalOutcome.SUPERSEDED, ProposalOutcome.UNKNOWN}
    assert all(each.command not in leader.machine.history().values() for each in lost)


def test_acknowledgements_under_way_do_not_send_entries_again() -> None:
    """pysyncobj moves nextIndex back at each success, and repeats what is under way."""
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    peers.propose(b"x")
    peers.turn()
    peers.propose(b"y")
    peers.turn()
    sent = peers.turn((2, Appended(term, True, 2)))
    assert [what for to, what in sent if to == 2] == []


def test_a_lost_append_is_sent_again() -> None:
    """Section 5.3: "the leader retries AppendEntries RPCs indefinitely"."""
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    peers.propose(b"x")
    peers.turn()
    heartbeat = next(what for to, what in peers.wait(0.11) if to == 2)
    assert heartbeat == Append(term, 2, term, 1, 0, ())
    again = peers.turn((2, Appended(term, False, 1)))
    assert [what.entries for to, what in again if to == 2] == [((term, b"\0x"),)]  # type: ignore[union-attr]


def test_a_late_refusal_takes_back_nothing() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    peers.acknowledge(2)
    peers.turn((2, Appended(term, False, 0)))
    peer = peers.core.peer(2)
    assert (peers.core.match_index[peer], peers.core.next_index[peer]) == (1, 2)


def test_messages_are_no_larger_than_allowed_and_not_too_many() -> None:
    options = RaftOptions(append_bytes_max=10, append_messages_in_flight_max=2)
    peers = ScriptedPeers(options=options)
    peers.lead()
    peers.acknowledge(2)
    for _ in range(10):
        peers.propose(b"12345678")
    sent = [what for to, what in peers.turn() if to == 2 and isinstance(what, Append)]
    assert [len(what.entries) for what in sent] == [1, 1]


def test_entries_that_every_member_has_are_dropped() -> None:
    cluster = Cluster(3)
    cluster.replicate(20)
    cluster.settle()
    cluster.run(1.0)
    assert [len(each.group.core.journal) for each in cluster.members.values()] == [0, 0, 0]


def test_entries_are_kept_for_a_member_that_is_briefly_behind() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    for text in (b"x", b"y"):
        peers.propose(text)
    peers.acknowledge(2)
    peers.turn((3, Appended(term, True, 1)))
    assert peers.journal.base_index == 1
    assert len(peers.journal) == 2


def test_a_restarted_member_applies_nothing_twice() -> None:
    """pysyncobj applies the whole log again; here the applied index is written with the state."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, B, C, commit=2)))
    peers.engine.disk.crash(peers.consensus._random)
    again = ScriptedPeers(engine=MemoryEngine(peers.engine.disk))
    assert (again.log(), again.group.applied_index) == ([(1, 1), (2, 1), (3, 1)], 2)
    again.turn((2, again.append(1, (3, 1), commit=3)))
    assert again.machine.applied_now == [3]
    assert len(again.machine.history()) == 3


def test_a_follower_applies_the_entries_of_a_frame_in_one_pass() -> None:
    peers = ScriptedPeers()
    entries = [(1, NOOP_PAYLOAD), A, B, C]
    peers.turn((2, peers.append(1, (0, 0), *entries, commit=4)))
    assert (peers.machine.passes, peers.machine.applied_now) == (1, [1, 2, 3, 4])
    assert peers.machine.applied_index() == 4


def test_entries_of_several_messages_of_a_turn_are_applied_in_one_pass() -> None:
    peers = ScriptedPeers()
    first, second = peers.append(1, (0, 0), A, B), peers.append(1, (2, 1), C, commit=3)
    peers.turn((2, first), (2, second))
    assert (peers.machine.passes, peers.machine.applied_now) == (1, [1, 2, 3])


def test_an_entry_that_cannot_be_applied_undoes_the_whole_pass() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), A, commit=1)))
    peers.machine.fails_on = b"b"
    writes = peers.stage((2, peers.append(1, (1, 1), C, B, C, commit=4)))
    assert writes == {}
    assert isinstance(peers.group.stopped, ArithmeticError)
    assert peers.machine.applied_index() == 1


def test_all_members_lose_power_at_once() -> None:
    cluster = Cluster(3)
    told = cluster.replicate(10)
    for node in (1, 2, 3):
        cluster.crash(node)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.replicate(1)
    cluster.settle()
    cluster.check_outcomes()
    assert all(each.outcome is ProposalOutcome.APPLIED for each in told)


def test_bytes_under_way_to_a_slow_peer_are_bounded_and_cost_the_others_nothing() -> None:
    options = RaftOptions(append_bytes_max=10, append_bytes_in_flight_max=35)
    peers = ScriptedPeers(options=options)
    term = peers.lead()
    peers.acknowledge(2)
    peers.acknowledge(3)
    sent: list = []
    for number in range(1, 20):
        peers.propose(b"123456789")
        sent += peers.turn()
        peers.turn((2, Appended(term, True, peers.group.last_index)))
        assert len(peers.outcomes) == number, "the others are not waited for"
    to_three = [what for to, what in sent if to == 3 and isinstance(what, Append)]
    assert [len(what.entries) for what in to_three] == [1, 1, 1, 1]
    # Each answer makes room for more.
    more = peers.turn((3, Appended(term, True, 3)))
    assert [what.prev_index for to, what in more if to == 3 and isinstance(what, Append)] == [5, 6]


def test_an_entry_larger_than_all_limits_goes_alone() -> None:
    peers = ScriptedPeers(options=RaftOptions(append_bytes_max=10, append_bytes_in_flight_max=20))
    peers.lead()
    peers.acknowledge(2)
    for text in (b"small", b"large" * 100, b"small"):
        peers.propose(text)
    sent = [what for to, what in peers.turn() if to == 2 and isinstance(what, Append)]
    assert [len(what.entries) for what in sent] == [1, 1]
    said = peers.turn((2, Appended(peers.group.term, True, 3)))
    rest = [what for to, what in said if to == 2 and isinstance(what, Append)]
    assert [len(what.entries) for what in rest] == [1]


def test_a_member_that_is_away_for_a_moment_needs_no_snapshot() -> None:
    """A rolling restart: what is kept for a silent member is bounded, and is not nothing."""
    cluster = Cluster(3)
    cluster.replicate(3)
    away = cluster.followers()[0].node
    cluster.crash(away)
    cluster.replicate(50)
    cluster.run(8.0)
    leader = cluster.elect()
    cluster.start(away)
    cluster.settle()
    assert leader.machine.opened == []


def test_entries_older_than_what_is_committed_are_refused() -> None:
    """Terms rise along a log (section 5.4.1). A sender of older ones has lost its log."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0), (3, NOOP_PAYLOAD), (3, b"\0x"), commit=2)))
    odd = peers.append(3, (1, 0), (0, b"\0odd"), (1, b"\0odd"))
    assert peers.ask(3, odd) == [Appended(3, False, 2)]
    assert peers.group.stopped is None
    assert peers.log()[-1] == (2, 3)


def test_followers_apply_a_large_entry_over_turns_and_all_that_follow_after_it() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.settle()
    follower = cluster.followers()[0]
    before = follower.group.applied_index
    turns: list[int] = []
    turn = follower.turn

    def counted() -> None:
        turn()
        turns.append(follower.group.applied_index - before)

    follower.turn = counted  # type: ignore[method-assign]
    large = cluster.propose(leader, bytes(20 * BYTES_A_TURN))
    small = [cluster.propose(leader, b"%d" % number) for number in range(5)]
    cluster.run_until(lambda: turns and turns[-1] == 6)
    assert {each.outcome for each in (large, *small)} == {ProposalOutcome.APPLIED}
    assert turns.count(0) > 15, "it took a turn for each part"
    assert sorted(turns) == turns
    cluster.check_state_machine_safety()


def test_a_member_that_is_started_again_half_way_through_a_large_entry_applies_it() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.settle()
    follower = cluster.followers()[0]
    cluster.propose(leader, bytes(50 * BYTES_A_TURN))
    cluster.run_until(lambda: follower.group.core.commit_index > follower.group.applied_index)
    node = follower.node
    cluster.crash(node)
    again = cluster.start(node)
    cluster.propose(leader, b"after")
    cluster.run_until(lambda: again.group.applied_index == leader.group.applied_index)
    cluster.settle()
    cluster.check_state_machine_safety()


def test_a_leader_elected_during_a_large_entry_proposes_after_it() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.settle()
    cluster.propose(leader, bytes(50 * BYTES_A_TURN))
    follower = cluster.followers()[0]
    cluster.run_until(lambda: follower.group.core.commit_index > follower.group.applied_index)
    cluster.crash(leader.node)
    successor = cluster.elect()
    proposed = cluster.propose(successor, b"after")
    cluster.run_until(lambda: proposed.outcome is not None)
    assert proposed.outcome is ProposalOutcome.APPLIED
    cluster.start(leader.node)
    cluster.settle()
    cluster.check_state_machine_safety()
