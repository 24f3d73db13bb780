"""Bytes from disk or network are never unpickled, and nothing is pickled."""

from __future__ import annotations

import pickle
from typing import NoReturn

import pysyncobj.pickle
import pytest

from postroom.raft.interface import RaftOptions
from postroom.raft.membership import AddLearner
from tests.raft.cluster import Cluster


@pytest.fixture(autouse=True)
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("pickle was used")

    for module in (pickle, pysyncobj.pickle):
        for name in ("dump", "dumps", "load", "loads"):
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)


def test_a_cluster_lives_without_pickles() -> None:
    """Appends, large entries, restarts, truncation, conflicts, snapshots and new members."""
    cluster = Cluster(3, options=RaftOptions(log_entries_max=5, append_bytes_max=1000))
    cluster.replicate(5)
    cluster.propose(cluster.elect(), b"large" * 100_000)
    away = cluster.followers()[0].node
    cluster.crash(away)
    cluster.replicate(20)
    cluster.run(2.0)
    cluster.start(away)
    cluster.settle()
    leader = cluster.elect()
    cluster.network.partition([leader.node], [n for n in cluster.members if n != leader.node])
    cluster.propose(leader)
    cluster.run(3.0)
    cluster.replicate(2)
    cluster.network.heal()
    cluster.settle()
    told: list[object] = []
    cluster.elect().group.change_members(AddLearner(4), told.append)
    cluster.run_until(lambda: told)
    assert all(each.group.stopped is None for each in cluster.members.values())
    cluster.check_state_machine_safety()
    for node in (1, 2, 3):
        cluster.crash(node)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.replicate(2)
    cluster.settle()
    cluster.check_outcomes()
