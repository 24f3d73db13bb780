"""Leadership handed over on purpose: dissertation, section 3.10."""

from __future__ import annotations

from postroom.raft.membership import Remove
from postroom.raft.messages import Append, Appended, PreVote, TimeoutNow, Vote, Voted
from postroom.raft.outcome import Outcome
from tests.raft.cluster import Cluster
from tests.raft.puppet import NOOP_PAYLOAD, Puppets


def leading() -> Puppets:
    """Member 1 leads members 1 to 3, who all have everything."""
    puppets = Puppets()
    puppets.lead()
    puppets.acknowledge(2)
    puppets.acknowledge(3)
    return puppets


def told_to_campaign(said: list) -> list[int]:
    return [to for to, what in said if isinstance(what, TimeoutNow)]


def test_leadership_moves_within_a_round_and_callers_see_a_pause_only() -> None:
    for seed in range(5):
        cluster = Cluster(3, seed)
        leader = cluster.elect()
        cluster.replicate(3)
        target = cluster.followers()[0]
        before = cluster.now
        leader.group.transfer_leadership(target.node)
        assert leader.group.is_transferring
        waiting = cluster.propose(leader)
        cluster.run_until(lambda target=target: target.group.is_leader)  # type: ignore[misc]
        assert cluster.now - before < 0.05
        cluster.run(1.5)
        assert waiting.outcome is Outcome.SUPERSEDED
        assert not leader.group.is_transferring
        cluster.replicate(2)
        cluster.settle()
        cluster.check_outcomes()
        assert cluster.leader is target


def test_the_target_is_brought_up_to_date_first() -> None:
    """Section 3.10, step 2."""
    puppets = leading()
    puppets.propose(b"x")
    puppets.turn()
    puppets.group.transfer_leadership(3)
    assert told_to_campaign(puppets.turn()) == []
    assert told_to_campaign(puppets.acknowledge(2)) == []
    assert told_to_campaign(puppets.acknowledge(3)) == [3]


def test_proposals_wait_and_go_on_when_the_target_does_nothing() -> None:
    """Section 3.10: after "about an election timeout, the prior leader aborts the transfer"."""
    puppets = leading()
    puppets.group.transfer_leadership(3)
    puppets.propose(b"x")
    said = puppets.turn()
    assert [what.entries for _, what in said if isinstance(what, Append)] == []
    assert puppets.outcomes == []
    for _ in range(11):
        puppets.now += 0.1
        said = puppets.acknowledge(2)
    assert not puppets.group.is_transferring
    puppets.acknowledge(2)
    assert puppets.outcomes == [Outcome.APPLIED]


def test_the_order_is_repeated_if_it_may_be_lost() -> None:
    puppets = leading()
    puppets.group.transfer_leadership(3)
    assert told_to_campaign(puppets.turn()) == [3]
    assert told_to_campaign(puppets.turn()) == []
    puppets.now += 0.11
    assert told_to_campaign(puppets.turn()) == [3]


def test_without_a_name_the_voter_with_most_is_chosen() -> None:
    puppets = Puppets()
    puppets.lead()
    puppets.acknowledge(3)
    puppets.group.transfer_leadership(None)
    assert told_to_campaign(puppets.turn()) == [3]


def test_to_nobody_means_going_on() -> None:
    for target in (1, 9):
        puppets = leading()
        puppets.group.transfer_leadership(target)
        puppets.propose(b"x")
        puppets.turn()
        assert not puppets.group.is_transferring
        puppets.acknowledge(2)
        assert puppets.outcomes == [Outcome.APPLIED]
    alone = Puppets((1,))
    alone.group.transfer_leadership(None)
    alone.propose(b"x")
    alone.turn()
    assert (alone.outcomes, alone.group.is_transferring) == ([Outcome.APPLIED], False)


def test_not_to_a_member_that_cannot_lead_yet() -> None:
    puppets = leading()
    puppets.turn((3, Appended(puppets.group.term, True, 1, installing=True)))
    puppets.group.transfer_leadership(3)
    assert told_to_campaign(puppets.turn()) == []
    puppets.group.transfer_leadership(None)
    assert told_to_campaign(puppets.turn()) == [2]


def test_a_follower_transfers_nothing() -> None:
    for target in (2, None):
        puppets = Puppets()
        puppets.group.transfer_leadership(target)
        assert told_to_campaign(puppets.turn()) == []
        assert not puppets.group.is_transferring
        assert puppets.group.stopped is None


def test_the_target_campaigns_at_once_and_says_why() -> None:
    puppets = Puppets()
    puppets.turn((2, puppets.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    asked = puppets.turn((2, TimeoutNow(3)))
    assert asked == [(2, Vote(4, 1, 3, transfer=True)), (3, Vote(4, 1, 3, transfer=True))]
    puppets.turn((3, Voted(4, True)))
    assert puppets.group.is_leader


def test_only_the_leader_of_the_term_may_ask_for_that() -> None:
    puppets = Puppets()
    puppets.turn((2, puppets.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    assert puppets.turn((3, TimeoutNow(3))) == []
    assert puppets.turn((2, TimeoutNow(2))) == []
    assert puppets.turn((2, TimeoutNow(4))) == []
    assert puppets.group.term == 3


def test_voters_that_hear_the_leader_answer_its_chosen_successor() -> None:
    """Dissertation, section 4.2.3: "permission to disrupt the leader"."""
    puppets = Puppets()
    puppets.turn((2, puppets.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    assert puppets.ask(3, Vote(4, 1, 3)) == []
    assert puppets.ask(3, Vote(4, 1, 3, transfer=True)) == [Voted(4, True)]


def test_the_former_leader_votes_for_its_successor() -> None:
    puppets = leading()
    puppets.group.transfer_leadership(3)
    puppets.turn()
    assert puppets.ask(3, Vote(2, 1, 1, transfer=True)) == [Voted(2, True)]
    assert not puppets.group.is_leader


def test_a_successor_whose_log_is_old_gets_no_vote() -> None:
    """What makes it a leader are votes, whoever asked it to campaign."""
    puppets = leading()
    puppets.propose(b"x")
    puppets.turn()
    assert puppets.ask(3, Vote(2, 1, 1, transfer=True)) == [Voted(2, False)]


def test_no_members_change_meanwhile() -> None:
    puppets = leading()
    puppets.group.transfer_leadership(3)
    puppets.group.change_members(Remove(2), puppets.outcomes.append)
    puppets.turn()
    assert puppets.outcomes == [Outcome.SUPERSEDED]


def test_transfers_under_load_lose_nothing() -> None:
    for seed in range(10):
        cluster = Cluster(3, seed)
        for _ in range(6):
            leader = cluster.elect()
            for _ in range(3):
                cluster.propose(leader)
            leader.group.transfer_leadership(None)
            for _ in range(3):
                cluster.propose(leader)
            cluster.run(cluster.random.choice([0.001, 0.01, 0.2]))
        cluster.replicate()
        cluster.run_until(lambda cluster=cluster: all(p.outcomes for p in cluster.proposed))  # type: ignore[misc]
        cluster.settle()
        cluster.check_outcomes()
        assert len(cluster.leaders) > 1


def test_a_straw_poll_is_still_refused_meanwhile() -> None:
    puppets = leading()
    puppets.group.transfer_leadership(3)
    puppets.turn()
    answers = puppets.ask(2, PreVote(2, 9, 1))
    assert [type(answer).__name__ for answer in answers] == ["PreVoted"]
    assert not answers[0].granted  # type: ignore[union-attr]
