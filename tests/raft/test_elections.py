"""Leadership: sentences of the Raft paper (sections 5.2, 5.4.1, 6), and what pysyncobj lacks."""

from __future__ import annotations

import pytest

from postroom.kv.memory import MemoryEngine
from postroom.raft.messages import Append, Appended, PreVote, PreVoted, Vote, Voted
from tests.raft.cluster import Cluster
from tests.raft.puppet import NOOP_PAYLOAD, Puppets


def test_a_server_that_hears_nothing_begins_an_election() -> None:
    """Section 5.2: "If a follower receives no communication over the election timeout"."""
    puppets = Puppets()
    assert puppets.wait(0.49) == []
    polls = puppets.wait(0.6)
    assert polls == [(2, PreVote(1, 0, 0)), (3, PreVote(1, 0, 0))]
    assert puppets.group.term == 0


def test_a_candidate_increments_its_term_and_votes_for_itself() -> None:
    """Section 5.2: "a follower increments its current term ... votes for itself"."""
    puppets = Puppets()
    puppets.wait(1.1)
    assert puppets.turn((3, PreVoted(1, True))) == [(2, Vote(1, 0, 0)), (3, Vote(1, 0, 0))]
    assert (puppets.group.term, puppets.core.vote) == (1, 1)


def test_a_candidate_wins_with_the_votes_of_a_majority() -> None:
    """Section 5.2: "receives votes from a majority of the servers in the full cluster"."""
    puppets = Puppets((1, 2, 3, 4, 5))
    puppets.wait(1.1)
    puppets.turn((2, PreVoted(1, True)), (3, PreVoted(1, True)))
    puppets.turn((2, Voted(1, True)))
    assert not puppets.group.is_leader
    puppets.turn((3, Voted(1, True)))
    assert puppets.group.is_leader


def test_each_voter_counts_once() -> None:
    """A doubled answer is one vote (pysyncobj counts answers, not voters)."""
    puppets = Puppets((1, 2, 3, 4, 5))
    puppets.wait(1.1)
    puppets.turn((2, PreVoted(1, True)), (2, PreVoted(1, True)))
    assert puppets.group.term == 0
    puppets.turn((3, PreVoted(1, True)))
    puppets.turn((2, Voted(1, True)), (2, Voted(1, True)), (2, Voted(1, True)))
    assert not puppets.group.is_leader


def test_votes_of_strangers_do_not_count() -> None:
    """Only members make a majority (pysyncobj counts whoever answers)."""
    puppets = Puppets()
    puppets.wait(1.1)
    puppets.turn((9, PreVoted(1, True)))
    assert puppets.group.term == 0
    puppets.turn((2, PreVoted(1, True)))
    puppets.turn((9, Voted(1, True)))
    assert not puppets.group.is_leader


def test_votes_of_an_earlier_term_do_not_count() -> None:
    puppets = Puppets()
    puppets.wait(1.1)
    puppets.turn((2, PreVoted(1, True)))
    puppets.wait(1.1)
    puppets.turn((2, PreVoted(2, True)))
    assert puppets.group.term == 2
    puppets.turn((2, Voted(1, True)))
    assert not puppets.group.is_leader


def test_one_vote_a_term() -> None:
    """Section 5.2: "Each server will vote for at most one candidate in a given term"."""
    puppets = Puppets()
    assert puppets.ask(2, Vote(1, 0, 0)) == [Voted(1, True)]
    assert puppets.ask(3, Vote(1, 0, 0)) == [Voted(1, False)]
    assert puppets.ask(3, Vote(2, 0, 0)) == [Voted(2, True)]


def test_a_vote_is_repeated_to_the_same_candidate() -> None:
    """Figure 2: "votedFor is null or candidateId" (pysyncobj never answers a second time)."""
    puppets = Puppets()
    assert puppets.ask(2, Vote(1, 0, 0)) == [Voted(1, True)]
    assert puppets.ask(2, Vote(1, 0, 0)) == [Voted(1, True)]


def test_term_and_vote_survive_a_restart() -> None:
    """Section 5.2 needs currentTerm and votedFor on stable storage (figure 2)."""
    puppets = Puppets()
    puppets.ask(2, Vote(4, 0, 0))
    puppets.engine.disk.crash(puppets.consensus._random)
    again = Puppets(engine=MemoryEngine(puppets.engine.disk))
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
    puppets = Puppets()
    puppets.turn((3, puppets.append(2, (0, 0), (2, NOOP_PAYLOAD), (2, b"\0x"))))
    puppets.now += 1.2
    assert puppets.ask(2, PreVote(5, last_index, last_term))[0].granted is granted
    assert puppets.ask(2, Vote(5, last_index, last_term)) == [Voted(5, granted)]


def test_a_stale_candidate_or_leader_becomes_a_follower() -> None:
    """Section 5.1: "discovers that its term is out of date ... reverts to follower state"."""
    puppets = Puppets()
    term = puppets.lead()
    puppets.turn((2, Appended(term + 3, False, 0)))
    assert not puppets.group.is_leader
    assert puppets.group.term == term + 3


def test_a_candidate_that_hears_a_leader_of_its_term_follows() -> None:
    """Section 5.2: "at least as large as the candidate's current term ... returns to follower"."""
    puppets = Puppets()
    puppets.wait(1.1)
    puppets.turn((2, PreVoted(1, True)))
    puppets.turn((3, puppets.append(1, (0, 0), (1, NOOP_PAYLOAD))))
    assert puppets.group.leader == 3
    puppets.turn((2, Voted(1, True)))
    assert not puppets.group.is_leader


def test_requests_with_a_stale_term_are_rejected() -> None:
    """Section 5.1: "If a server receives a request with a stale term number, it rejects"."""
    puppets = Puppets()
    puppets.turn((3, Vote(7, 0, 0)))
    assert puppets.ask(2, puppets.append(3, (0, 0), (3, NOOP_PAYLOAD))) == [Appended(7, False, 0)]
    assert puppets.ask(2, Vote(3, 0, 0)) == [Voted(7, False)]
    assert puppets.log() == []


def test_a_voter_that_hears_a_leader_does_not_answer() -> None:
    """Section 6: "a RequestVote RPC within the minimum election timeout ... does not update"."""
    puppets = Puppets()
    puppets.turn((2, puppets.append(1, (0, 0), (1, NOOP_PAYLOAD))))
    puppets.now += 0.49
    assert puppets.ask(3, Vote(9, 5, 5)) == []
    assert puppets.ask(3, PreVote(9, 5, 5)) == [PreVoted(1, False)]
    assert puppets.group.term == 1
    puppets.now += 0.02
    assert puppets.ask(3, Vote(9, 5, 5)) == [Voted(9, True)]


def test_a_leader_is_not_deposed_by_a_vote_request() -> None:
    puppets = Puppets()
    term = puppets.lead()
    assert puppets.ask(3, Vote(term + 5, 99, 99)) == []
    assert (puppets.group.is_leader, puppets.group.term) == (True, term)


def test_asking_beforehand_changes_nothing_at_the_voter() -> None:
    """Dissertation, section 9.6: a server does not enter a term before it could win it."""
    puppets = Puppets()
    before = dict(puppets.engine.iterate(b"", b"\xff"))
    assert puppets.ask(2, PreVote(9, 0, 0)) == [PreVoted(9, True)]
    assert puppets.ask(3, PreVote(9, 0, 0)) == [PreVoted(9, True)]
    assert (puppets.group.term, puppets.core.vote) == (0, None)
    assert dict(puppets.engine.iterate(b"", b"\xff")) == before


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
    puppets = Puppets()
    puppets.lead()
    puppets.wait(0.9)
    assert puppets.group.is_leader
    puppets.wait(0.2)
    assert not puppets.group.is_leader
    assert puppets.group.leader is None


def test_a_leader_that_hears_a_majority_stays() -> None:
    puppets = Puppets()
    puppets.lead()
    for _ in range(30):
        puppets.now += 0.1
        puppets.acknowledge(3)
    assert puppets.group.is_leader


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
    puppets = Puppets()
    drawn = set()
    for _ in range(20):
        puppets.core.restart_election_timer()
        drawn.add(puppets.core.election_deadline - puppets.core.now)
    assert len(drawn) == 20
    assert min(drawn) >= 0.5
    assert max(drawn) <= 1.0


def test_leadership_is_told_once_durable() -> None:
    puppets = Puppets()
    told: list[tuple[bool, int]] = []
    puppets.group.on_leadership = lambda leads, term: told.append((leads, term))
    term = puppets.lead()
    puppets.wait(1.1)
    assert told[-2:] == [(True, term), (False, term)]


def test_a_late_append_of_a_former_leader_does_not_count_as_hearing_one() -> None:
    puppets = Puppets()
    puppets.turn((3, Vote(7, 0, 0)))
    deadline = puppets.core.election_deadline
    puppets.now += 0.1
    puppets.turn((2, Append(3, 0, 0, 0, 0, ())))
    assert puppets.core.election_deadline == deadline
    assert puppets.group.leader is None
