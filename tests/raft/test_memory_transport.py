"""The network in memory does what its faults say, the same way each time."""

from __future__ import annotations

import random  # noqa: TID251 (seeded)

from postroom.raft.interface import MemoryNetwork, MemoryTransport, NetworkFaults


class Net:
    def __init__(self, seed: int = 1, **faults: float) -> None:
        self.now = 0.0
        self.network = MemoryNetwork(random.Random(seed), lambda: self.now, NetworkFaults(**faults))
        self.ends: list[MemoryTransport] = [self.network.attach(node) for node in (1, 2, 3)]

    def send(self, count: int) -> list[bytes]:
        """Return what node 2 gets of ``count`` frames from node 1, in a minute."""
        for number in range(count):
            self.ends[0].send(2, b"%d" % number)
        self.now += 60.0
        return [frame for _, frame in self.ends[1].receive()]


def test_frames_arrive_in_order_with_their_sender() -> None:
    net = Net()
    net.ends[0].send(2, b"a")
    net.ends[2].send(2, b"b")
    assert list(net.ends[1].receive()) == []
    assert net.network.next_arrival() == 0.001
    net.now = 0.001
    assert list(net.ends[1].receive()) == [(1, b"a"), (3, b"b")]
    assert list(net.ends[1].receive()) == []


def test_frames_are_lost() -> None:
    assert 20 < len(Net(lost_share=0.5).send(100)) < 80


def test_frames_are_doubled() -> None:
    assert 120 < len(Net(doubled_share=0.5).send(100)) < 180


def test_frames_overtake_each_other() -> None:
    got = Net(delay_seconds_max=1.0).send(50)
    assert got != sorted(got, key=int)
    assert sorted(got, key=int) == [b"%d" % number for number in range(50)]


def test_the_same_seed_does_the_same() -> None:
    faults = {"lost_share": 0.3, "doubled_share": 0.3, "delay_seconds_max": 1.0}
    assert Net(7, **faults).send(50) == Net(7, **faults).send(50) != Net(8, **faults).send(50)


def test_partitions_cut_and_heal() -> None:
    net = Net()
    net.network.partition([1], [2, 3])
    assert (net.ends[0].connected(2), net.ends[1].connected(3)) == (False, True)
    assert net.send(3) == []
    net.network.heal()
    assert len(net.send(3)) == 3


def test_nodes_not_named_in_a_partition_stand_alone() -> None:
    net = Net()
    net.network.partition([1])
    assert not any(one.connected(2) for one in (net.ends[0], net.ends[2]))


def test_messages_sent_before_a_node_went_down_still_arrive() -> None:
    net = Net()
    net.ends[0].send(2, b"a")
    net.network.detach(1)
    net.now = 1.0
    assert list(net.ends[1].receive()) == [(1, b"a")]


def test_messages_under_way_to_a_node_that_goes_down_are_lost() -> None:
    net = Net()
    net.ends[0].send(2, b"a")
    net.network.detach(2)
    assert not net.ends[0].connected(2)
    net.ends[1] = net.network.attach(2)
    net.now = 1.0
    assert list(net.ends[1].receive()) == []
