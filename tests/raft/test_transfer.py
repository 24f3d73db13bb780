"""Leadership handed over on purpose: dissertation, section 3.10."""

from __future__ import annotations

from postroom.raft.membership import Remove
from postroom.raft.messages import Append, Appended, PreVote, TimeoutNow, Vote, Voted
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import Cluster
from tests.raft.scripted import NOOP_PAYLOAD, ScriptedPeers


def leading() -> ScriptedPeers:
    """Let member 1 lead members 1 to 3, who all have everything."""
    peers = ScriptedPeers()
    peers.lead()
    peers.acknowledge(2)
    peers.acknowledge(3)
    return peers


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
        assert waiting.outcome is ProposalOutcome.SUPERSEDED
        assert not leader.group.is_transferring
        cluster.replicate(2)
        cluster.settle()
        cluster.check_outcomes()
        assert cluster.leader is target


def test_the_target_is_brought_up_to_date_first() -> None:
    """Section 3.10, step 2."""
    peers = leading()
    peers.propose(b"x")
    peers.turn()
    peers.group.transfer_leadership(3)
    assert told_to_campaign(peers.turn()) == []
    assert told_to_campaign(peers.acknowledge(2)) == []
    assert told_to_campaign(peers.acknowledge(3)) == [3]


def test_proposals_wait_and_go_on_when_the_target_does_nothing() -> None:
    """Section 3.10: after "about an election timeout, the prior leader aborts the transfer"."""
    peers = leading()
    peers.group.transfer_leadership(3)
    peers.propose(b"x")
    said = peers.turn()
    assert [what.entries for _, what in said if isinstance(what, Append)] == []
    assert peers.outcomes == []
    for _ in range(11):
        peers.now += 0.1
        said = peers.acknowledge(2)
    assert not peers.group.is_transferring
    peers.acknowledge(2)
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_the_order_is_repeated_if_it_may_be_lost() -> None:
    peers = leading()
    peers.group.transfer_leadership(3)
    assert told_to_campaign(peers.turn()) == [3]
    assert told_to_campaign(peers.turn()) == []
    peers.now += 0.11
    assert told_to_campaign(peers.turn()) == [3]


def test_without_a_name_the_voter_with_most_is_chosen() -> None:
    peers = ScriptedPeers()
    peers.lead()
    peers.acknowledge(3)
    peers.group.transfer_leadership(None)
    assert told_to_campaign(peers.turn()) == [3]


def test_a_transfer_without_a_fit_target_changes_nothing() -> None:
    for target in (1, 9):
        peers = leading()
        peers.group.transfer_leadership(target)
        peers.propose(b"x")
        peers.turn()
        assert not peers.group.is_transferring
        peers.acknowledge(2)
        assert peers.outcomes == [ProposalOutcome.APPLIED]
    alone = ScriptedPeers((1,))
    alone.group.transfer_leadership(None)
    alone.propose(b"x")
    alone.turn()
    assert (alone.outcomes, alone.group.is_transferring) == ([ProposalOutcome.APPLIED], False)


def test_a_member_that_cannot_lead_yet_is_no_target_of_a_transfer() -> None:
    peers = leading()
    peers.turn((3, Appended(peers.group.term, True, 1, installing=True)))
    peers.group.transfer_leadership(3)
    assert told_to_campaign(peers.turn()) == []
    peers.group.transfer_leadership(None)
    assert told_to_campaign(peers.turn()) == [2]


def test_a_follower_transfers_nothing() -> None:
    for target in (2, None):
        peers = ScriptedPeers()
        peers.group.transfer_leadership(target)
        assert told_to_campaign(peers.turn()) == []
        assert not peers.group.is_transferring
        assert peers.group.stopped is None


def test_the_target_campaigns_at_once_and_says_why() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    asked = peers.turn((2, TimeoutNow(3)))
    assert asked == [(2, Vote(4, 1, 3, transfer=True)), (3, Vote(4, 1, 3, transfer=True))]
    peers.turn((3, Voted(4, True)))
    assert peers.group.is_leader


def test_only_the_leader_of_the_term_may_ask_for_that() -> None:
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    assert peers.turn((3, TimeoutNow(3))) == []
    assert peers.turn((2, TimeoutNow(2))) == []
    assert peers.turn((2, TimeoutNow(4))) == []
    assert peers.group.term == 3


def test_voters_that_hear_the_leader_answer_its_chosen_successor() -> None:
    """Dissertation, section 4.2.3: "permission to disrupt the leader"."""
    peers = ScriptedPeers()
    peers.turn((2, peers.append(3, (0, 0), (3, NOOP_PAYLOAD))))
    assert peers.ask(3, Vote(4, 1, 3)) == []
    assert peers.ask(3, Vote(4, 1, 3, transfer=True)) == [Voted(4, True)]


def test_the_former_leader_votes_for_its_successor() -> None:
    peers = leading()
    peers.group.transfer_leadership(3)
    peers.turn()
    assert peers.ask(3, Vote(2, 1, 1, transfer=True)) == [Voted(2, True)]
    assert not peers.group.is_leader


def test_a_successor_whose_log_is_old_gets_no_vote() -> None:
    """Votes make it a leader, whoever asked it to campaign."""
    peers = leading()
    peers.propose(b"x")
    peers.turn()
    assert peers.ask(3, Vote(2, 1, 1, transfer=True)) == [Voted(2, False)]


def test_a_change_of_members_during_a_transfer_is_refused() -> None:
    peers = leading()
    peers.group.transfer_leadership(3)
    peers.group.change_members(Remove(2), peers.outcomes.append)
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.SUPERSEDED]


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
    peers = leading()
    peers.group.transfer_leadership(3)
    peers.turn()
    answers = peers.ask(2, PreVote(2, 9, 1))
    assert [type(answer).__name__ for answer in answers] == ["PreVoted"]
    assert not answers[0].granted  # type: ignore[union-attr]
