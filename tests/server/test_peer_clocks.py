"""The wall clocks that a node believes: its own, or those of the others."""

from __future__ import annotations

import pytest

from postroom.kv.clock import TrustedWall
from postroom.server.peer_clocks import GONE_SECONDS, PeerClocks

BEGINNING = 1_700_000_000_000
DAY = 86_400.0


class Nodes:
    """A node, with what its peers say."""

    def __init__(self, *peers: int) -> None:
        self.seconds = 50.0
        self.ahead = dict.fromkeys((0, *peers), 0.0)
        self.peers = PeerClocks(self)
        self.wall = TrustedWall(self.wall_milliseconds, self.monotonic)
        self.wall.judge = self.peers.judge
        self.say()

    def wall_milliseconds(self, node: int = 0) -> int:
        return BEGINNING + round((self.seconds + self.ahead[node]) * 1000)

    def since_millisecond(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return self.seconds

    def say(self) -> None:
        for peer in self.ahead:
            if peer and self.peers.heard(peer, self.wall_milliseconds(peer)):
                self.wall.look_again()

    def passes(self, seconds: float) -> None:
        """Let time pass, with a frame of each peer every half a second."""
        for _ in range(round(seconds * 2)):
            self.seconds += 0.5
            self.say()

    @property
    def trusted_ahead(self) -> float:
        """Return how far the trusted clock is ahead of true time."""
        return (self.wall.milliseconds() - BEGINNING) / 1000 - self.seconds


def test_a_store_without_peers_follows_each_jump() -> None:
    alone = Nodes()
    alone.ahead[0] = DAY
    assert alone.trusted_ahead == DAY
    alone.ahead[0] = 0.0
    assert alone.trusted_ahead == 0.0


@pytest.mark.parametrize("peers", [(2,), (2, 3), (2, 3, 4, 5)])
def test_a_jump_that_the_others_contradict_is_not_followed(peers: tuple[int, ...]) -> None:
    nodes = Nodes(*peers)
    nodes.ahead[0] = DAY
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)
    nodes.passes(3600.0)
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)
    nodes.ahead[0] = 0.0
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)


def test_a_jump_that_all_make_is_followed_with_their_next_frame() -> None:
    nodes = Nodes(2, 3)
    nodes.ahead = dict.fromkeys(nodes.ahead, -DAY)
    nodes.passes(0.5)
    assert nodes.trusted_ahead == pytest.approx(-DAY, abs=0.01)


def test_a_machine_that_was_suspended_is_right_again_with_the_next_frames() -> None:
    """A suspended machine's monotonic clock stood still.

    Its wall clock therefore seems to have jumped, and the others' do, too.
    """
    nodes = Nodes(2, 3)
    nodes.seconds -= 600.0
    nodes.ahead = dict.fromkeys(nodes.ahead, 600.0)
    nodes.passes(0.5)
    assert nodes.trusted_ahead == pytest.approx(600.0, abs=0.01)


def test_a_clock_that_was_wrong_from_the_start_gives_way_to_two_others_that_agree() -> None:
    nodes = Nodes(2, 3)
    nodes.ahead[0] = DAY
    nodes.wall = TrustedWall(nodes.wall_milliseconds, nodes.monotonic)
    nodes.wall.judge = nodes.peers.judge
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)
    assert nodes.peers.is_alone()


def test_a_clock_that_is_set_from_one_wrong_time_to_another_gives_way_to_the_others() -> None:
    nodes = Nodes(2, 3)
    nodes.ahead = {0: DAY, 2: DAY, 3: DAY}
    nodes.passes(0.5)
    assert nodes.trusted_ahead == pytest.approx(DAY, abs=0.01)
    nodes.ahead = {0: 2 * DAY, 2: 0.0, 3: 0.0}
    nodes.passes(0.5)
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)


def test_a_peer_whose_clock_is_set_is_believed_at_once() -> None:
    nodes = Nodes(2)
    nodes.ahead[0] = nodes.ahead[2] = DAY
    nodes.passes(0.5)
    assert nodes.trusted_ahead == pytest.approx(DAY, abs=0.01)


def test_a_node_that_hears_nobody_for_long_follows_its_own_clock() -> None:
    nodes = Nodes(2, 3)
    nodes.ahead[0] = DAY
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)
    nodes.seconds += GONE_SECONDS + 10.0
    assert nodes.trusted_ahead == pytest.approx(DAY, abs=0.01)
