"""The wall clocks that a node believes: its own, or those of the others."""

from __future__ import annotations

import pytest

from postroom.kv.clock import TrustedWall
from postroom.raft.messages import Clocks
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
        """Let a frame of each peer come, with the answer to one that was sent just now."""
        for peer in self.ahead:
            if peer:
                clock = self.wall_milliseconds(peer)
                self.hear(peer, Clocks(clock, self.wall_milliseconds(), clock))

    def hear(self, peer: int, clocks: Clocks) -> None:
        if self.peers.heard(peer, clocks):
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


@pytest.mark.parametrize(("there", "back"), [(0.8, 0.8), (3.0, 3.0), (0.0, 0.9), (0.9, 0.0)])
def test_delay_is_not_taken_for_difference(there: float, back: float) -> None:
    """The frames of a machine that is too busy are all late.

    Args:
        there: the seconds that the frames of the node take.
        back: the seconds that the frames of its peers take.
    """
    nodes = Nodes()
    for _ in range(40):
        nodes.seconds += 0.25
        now = nodes.wall_milliseconds()
        for peer in (2, 3):
            came = now - round(back * 1000)
            nodes.hear(peer, Clocks(came, came - round(there * 1000), came))
        assert not nodes.peers.is_alone()
        assert abs(nodes.peers.offset_seconds()) <= abs(there - back) / 2 + 0.01
    assert nodes.trusted_ahead == pytest.approx(0.0, abs=0.01)


def test_the_least_delayed_frames_count() -> None:
    """One frame in ten is in time; before, each late one made earlier ones be forgotten."""
    nodes = Nodes()
    for number in range(100):
        nodes.seconds += 0.1
        late = 0 if number % 10 == 0 else 2000
        came = nodes.wall_milliseconds() - late
        nodes.hear(2, Clocks(came, came, came))
        assert nodes.peers.offsets_by_peer()[2] == pytest.approx(0.0, abs=0.01)


def test_a_clock_that_is_ahead_is_found_by_late_frames_too() -> None:
    nodes = Nodes()
    nodes.ahead[0] = 3.0
    for _ in range(10):
        nodes.seconds += 0.5
        for peer in (2, 3):
            came = nodes.wall_milliseconds() - 3000 - 800
            nodes.hear(peer, Clocks(came, came + 3000 - 800, came))
    assert nodes.peers.is_alone()
    assert nodes.peers.offset_seconds() == pytest.approx(3.0, abs=0.01)


def test_a_peer_that_hears_nobody_has_no_say() -> None:
    nodes = Nodes()
    for _ in range(10):
        nodes.seconds += 0.5
        for peer in (2, 3):
            nodes.hear(peer, Clocks(nodes.wall_milliseconds() + 5000))
    assert nodes.peers.offsets_by_peer() == {}
    assert not nodes.peers.is_alone()


def test_an_answer_tells_when_a_frame_came_by_the_clock_of_now() -> None:
    """The clock of this node is set after the frame of the peer has come."""
    nodes = Nodes(2)
    stamp = nodes.wall_milliseconds(2)
    nodes.seconds += 1.0
    nodes.ahead[0] = DAY
    own = nodes.wall_milliseconds()
    assert nodes.peers.clocks_for(2) == Clocks(own, stamp, own - 1000)
    assert nodes.peers.clocks_for(3) == Clocks(own)


def test_an_answer_to_a_frame_of_before_the_clock_was_set_is_not_used() -> None:
    nodes = Nodes(2, 3)
    nodes.passes(10.0)
    for ahead in (DAY, -DAY):
        sent = nodes.wall_milliseconds()
        nodes.ahead[0] = ahead
        for peer in (2, 3):
            clock = nodes.wall_milliseconds(peer)
            nodes.hear(peer, Clocks(clock, sent, clock))
        assert nodes.peers.offset_seconds() == pytest.approx(ahead, abs=0.01)
        nodes.ahead[0] = 0.0
