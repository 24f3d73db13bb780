"""Leadership: sentences of the Raft paper (sections 5.2, 5.4.1, 6), and what pysyncobj lacks."""

from __future__ import annotations

import pytest

from postroom.kv.memory import MemoryEngine
from postroom.raft.messages import Append, Appended, PreVote, PreVoted, Vote, Voted
from tests.raft.cluster import Cluster
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers


def test_a_server_that_hears_nothing_begins_an_election() -> None:
    """Section 5.2: "If a follower receives no communication over the election timeout"."""
    peers = ScriptedPeers()
    assert peers.wait(0.49) == []
    polls = peers.wait(0.6)
    assert polls == [(2, PreVote(1, 0, 0)), (3, PreVote(1, 0, 0))]
    assert peers.group.term == 0


def test_a_candidate_increments_its_term_and_votes_for_itself() -> None:
    """Section 5.2: "a follower increments its current term ... votes for itself"."""
    peers = ScriptedPeers()
    peers.wait(1.1)
    assert peers.turn((3, PreVoted(1, True))) == [(2, Vote(1, 0, 0)), (3, Vote(1, 0, 0))]
    assert (peers.group.term, peers.core.vote) == (1, 1)


def test_a_candidate_wins_with_the_votes_of_a_majority() -> None:
    """Section 5.2: "receives votes from a majority of the servers in the full cluster"."""
    peers = ScriptedPeers((1, 2, 3, 4, 5))
    peers.wait(1.1)
    peers.turn((2, PreVoted(1, True)), (3, PreVoted(1, True)))
    peers.turn((2, Voted(1, True)))
    assert not peers.group.is_leader
    peers.turn((3, Voted(1, True)))
    assert peers.group.is_leader


def test_each_voter_counts_once() -> None:
    """A doubled answer is one vote (pysyncobj counts answers, not voters)."""
    peers = ScriptedPeers((1, 2, 3, 4, 5))
    peers.wait(1.1)
    peers.turn((2, PreVoted(1, True)), (2, PreVoted(1, True)))
    assert peers.group.term == 0
    peers.turn((3, PreVoted(1, True)))
    peers.turn((2, Voted(1, True)), (2, Voted(1, True)), (2, Voted(1, True)))
    assert not peers.group.is_leader


def test_votes_of_strangers_do_not_count() -> None:
    """Only members make a majority (pysyncobj counts whoever answers)."""
    peers = ScriptedPeers()
    peers.wait(1.1)
    peers.turn((9, PreVoted(1, True)))
    assert peers.group.term == 0
    peers.turn((2, PreVoted(1, True)))
    peers.turn((9, Voted(1, True)))
    assert not peers.group.is_leader


def test_votes_of_an_earlier_term_do_not_count() -> None:
    peers = ScriptedPeers()
    peers.wait(1.1)
    peers.turn((2, PreVoted(1, True)))
    peers.wait(1.1)
    peers.turn((2, PreVoted(2, True)))
    assert peers.group.term == 2
    peers.turn((2, Voted(1, True)))
    assert not peers.group.is_leader


def test_one_vote_a_term() -> None:
    """Section 5.2: "Each server will vote for at most one candidate in a given term"."""
    peers = ScriptedPeers()
    assert peers.ask(2, Vote(1, 0, 0)) == [Voted(1, True)]
    assert peers.ask(3, Vote(1, 0, 0)) == [Voted(1, False)]
    assert peers.ask(3, Vote(2, 0, 0)) == [Voted(2, True)]


def test_a_vote_is_repeated_to_the_same_candidate() -> None:
    """Figure 2: "votedFor is null or candidateId" (pysyncobj never answers a second time)."""
    peers = ScriptedPeers()
    assert peers.ask(2, Vote(1, 0, 0)) == [Voted(1, True)]
    assert peers.ask(2, Vote(1, 0, 0)) == [Voted(1, True)]


def test_term_and_vote_survive_a_restart() -> None:
    """Section 5.2 needs currentTerm and votedFor on stable storage (figure 2)."""
    peers = ScriptedPeers()
    peers.ask(2, Vote(4, 0, 0))
    peers.engine.disk.crash(peers.consensus._random)
    again = ScriptedPeers(engine=MemoryEngine(peers.engine.disk))
    assert again.group.term == 4
    assert again.ask(3, Vote(4, 0, 0)) == [Voted(4, False)]
    assert again.ask(2, Vote(4, 0, 0)) == [Voted(4, True)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(9, 1, False), (1, 2, False), (2, 2, True), (3, 2, True), (1, 3, True)],
)
def test_votes_go_to_logs_that_are_up_to_date(
    last_index: int, last_term: int, granted: bool
) -> None:
    """Section 5.4.1: the later last term is more up to date; with equal ones, the longer log."""
    peers = ScriptedPeers()
    peers.turn((3, peers.append(2, (0, 0), (2, NOOP_PAYLOAD), (2, b"\0x"))))
    peers.now += 1.2
    assert peers.ask(2, PreVote(5, last_index, last_term))[0].granted is granted
    assert peers.ask(2, Vote(5, last_index, last_term)) == [Voted(5, granted)]


def test_a_stale_candidate_or_leader_becomes_a_follower() -> None:
    """Section 5.1: "discovers that its term is out of date ... reverts to follower state"."""
    peers = ScriptedPeers()
    term = peers.lead()
    peers.turn((2, Appended(term + 3, False, 0)))
    assert not peers.group.is_leader
    assert peers.group.term == term + 3


def test_a_candidate_that_hears_a_leader_of_its_term_follows() -> None:
    """Section 5.2: "at least as large as the candidate's current term ... returns to follower"."""
    peers = ScriptedPeers()
    peers.wait(1.1)
    peers.turn((2, PreVoted(1, True)))
    peers.turn((3, peers.append(1, (0, 0), (1, NOOP_PAYLOAD))))
    assert peers.group.leader == 3
    peers.turn((2, Voted(1, True)))
    assert not peers.group.is_leader


def test_requests_with_a_stale_term_are_rejected() -> None:
    """Section 5.1: "If a server receives a request with a stale term number, it rejects"."""
    peers = ScriptedPeers()
    peers.turn((3, Vote(7, 0, 0)))
    assert peers.ask(2, peers.append(3, (0, 0), (3, NOOP_PAYLOAD))) == [Appended(7, False, 0)]
    assert peers.ask(2, Vote(3, 0, 0)) == [Voted(7, False)]
    assert peers.log() == []


def test_a_voter_that_hears_a_leader_does_not_answer() -> None:
    """Section 6: "a RequestVote RPC within the minimum election timeout ... does not update"."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(1, (0, 0), (1, NOOP_PAYLOAD))))
    peers.now += 0.49
    assert peers.ask(3, Vote(9, 5, 5)) == []
    assert peers.ask(3, PreVote(9, 5, 5)) == [PreVoted(1, False)]
    assert peers.group.term == 1
    peers.now += 0.02
    assert peers.ask(3, Vote(9, 5, 5)) == [Voted(9, True)]


def test_a_leader_is_not_deposed_by_a_vote_request() -> None:
    peers = ScriptedPeers()
    term = peers.lead()
    assert peers.ask(3, Vote(term + 5, 99, 99)) == []
    assert (peers.group.is_leader, peers.group.term) == (True, term)


def test_asking_beforehand_changes_nothing_at_the_voter() -> None:
    """Dissertation, section 9.6: a server does not enter a term before it could win it."""
    peers = ScriptedPeers()
    before = dict(peers.engine.iterate(b"", b"\xff"))
    assert peers.ask(2, PreVote(9, 0, 0)) == [PreVoted(9, True)]
    assert peers.ask(3, PreVote(9, 0, 0)) == [PreVoted(9, True)]
    assert (peers.group.term, peers.core.vote) == (0, None)
    assert dict(peers.engine.iterate(b"", b"\xff")) == before


def test_a_member_that_returns_with_an_old_log_does_not_disturb() -> None:
    """Section 6, "disruptive servers" (with pysyncobj it raises the term, and all elect again)."""
    cluster = Cluster(3)
    leader = cluster.elect()
    away = next(each for each in cluster.followers())
    cluster.network.partition([away.node], [n for n in cluster.members if n != away.node])
    cluster.replicate(3)
    cluster.run(20.0)
    term = leader.group.term
    cluster.network.heal()
    cluster.run(5.0)
    cluster.settle()
    assert cluster.leader is leader
    assert {each.group.term for each in cluster.members.values()} == {term}


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """Section 8 and dissertation 6.2; pysyncobj waits 30 seconds."""
    peers = ScriptedPeers()
    peers.lead()
    peers.wait(0.9)
    assert peers.group.is_leader
    peers.wait(0.2)
    assert not peers.group.is_leader
    assert peers.group.leader is None


def test_a_leader_that_hears_a_majority_stays() -> None:
    peers = ScriptedPeers()
    peers.lead()
    for _ in range(30):
        peers.now += 0.1
        peers.acknowledge(3)
    assert peers.group.is_leader


def test_a_candidate_stuck_in_a_higher_term_gets_out() -> None:
    """One who won the straw poll but not the election makes a deaf leader step down, once."""
    cluster = Cluster(3)
    leader = cluster.elect()
    stuck = cluster.followers()[0]
    stuck.group.core.become_candidate()
    stuck.consensus._wake(stuck.group)
    cluster.run(5.0)
    cluster.settle()
    terms = {each.group.term for each in cluster.members.values()}
    assert len(terms) == 1
    assert terms.pop() > leader.group.core.term - 1
    cluster.replicate()


def test_heartbeats_keep_leadership() -> None:
    """Section 5.2: leaders send heartbeats "to maintain their authority"."""
    cluster = Cluster(5)
    leader = cluster.elect()
    cluster.run(30.0)
    assert cluster.leader is leader
    assert list(cluster.leaders) == [leader.group.term]


def test_election_times_are_drawn_anew_each_time() -> None:
    """Section 5.2: "election timeouts are chosen randomly from a fixed interval"."""
    peers = ScriptedPeers()
    drawn = set()
    for _ in range(20):
        peers.core.restart_election_timer()
        drawn.add(peers.core.election_deadline - peers.core.now)
    assert len(drawn) == 20
    assert min(drawn) >= 0.5
    assert max(drawn) <= 1.0


def test_leadership_is_told_once_durable() -> None:
    peers = ScriptedPeers()
    told: list[tuple[bool, int]] = []
    peers.group.on_leadership = lambda leads, term: told.append((leads, term))
    term = peers.lead()
    peers.wait(1.1)
    assert told[-2:] == [(True, term), (False, term)]


def test_a_late_append_of_a_former_leader_does_not_count_as_hearing_one() -> None:
    peers = ScriptedPeers()
    peers.turn((3, Vote(7, 0, 0)))
    deadline = peers.core.election_deadline
    peers.now += 0.1
    peers.turn((2, Append(3, 0, 0, 0, 0, ())))
    assert peers.core.election_deadline == deadline
    assert peers.group.leader is None
