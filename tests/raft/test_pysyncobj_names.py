"""The pinned version of pysyncobj, and every private name of it that is used."""

from __future__ import annotations

import inspect
import random  # noqa: TID251 (seeded)
import threading
from importlib import metadata
from pathlib import Path

import pysyncobj
import pysyncobj.syncobj
import pytest
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.version import VERSION

import postroom.raft
from postroom.raft import syncobj_core
from postroom.raft.interface import RaftOptions
from postroom.raft.journal import Journal
from postroom.raft.membership import Members
from postroom.raft.stored_log import NOOP
from postroom.raft.syncobj_core import (
    ATTRIBUTES,
    METHODS,
    PYSYNCOBJ_VERSION,
    UNMANGLED,
    Core,
    _SilentTransport,
)

PACKAGE = Path(postroom.raft.__path__[0])


@pytest.fixture(scope="module")
def original() -> object:
    """Return an object of the library itself."""
    configuration = SyncObjConf(autoTick=False)
    return pysyncobj.SyncObj(Node(1), [Node(2)], configuration, transport=_SilentTransport())


def core() -> Core:
    journal = Journal(b"", Members((1, 2, 3)))
    return Core(1, journal, 0, RaftOptions(), random.Random(1))


def test_the_installed_version_is_the_one_that_was_read() -> None:
    assert VERSION == metadata.version("pysyncobj") == PYSYNCOBJ_VERSION


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_are_still_there(name: str, original: object) -> None:
    assert f"_SyncObj__{name}" in vars(original)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_still_there(name: str) -> None:
    assert inspect.isfunction(vars(pysyncobj.SyncObj)[f"_SyncObj__{name}"])


@pytest.mark.parametrize("name", UNMANGLED)
def test_unmangled_methods_are_still_there(name: str) -> None:
    assert inspect.isfunction(vars(pysyncobj.SyncObj)[name])


def test_roles_and_payload_kinds_are_the_librarys() -> None:
    states, kinds = pysyncobj.syncobj._RAFT_STATE, pysyncobj.syncobj._COMMAND_TYPE
    assert (states.FOLLOWER, states.CANDIDATE, states.LEADER) == (0, 1, 2)
    assert bytes([kinds.NO_OP]) == NOOP


def test_the_tables_list_every_private_name_that_is_used() -> None:
    own = {
        f"_SyncObj__{name}"
        for name in ("restore", "settle_members", "in_order", "forget", "barred")
    }
    used = set(Core.__init__.__code__.co_names)
    for member in vars(Core).values():
        function = member.fget if isinstance(member, property) else member
        code = getattr(function, "__code__", None)
        used |= set() if code is None else set(code.co_names) | set(code.co_consts)
    private = {name for name in used if isinstance(name, str) and name.startswith("_SyncObj__")}
    listed = {f"_SyncObj__{name}" for name in (*ATTRIBUTES, *METHODS)}
    assert private - own <= listed


def test_only_one_file_touches_private_names() -> None:
    for file in PACKAGE.glob("*.py"):
        text = file.read_text()
        touches = "_SyncObj__" in text or "pysyncobj.syncobj" in text
        assert touches == (file.name == "syncobj_core.py"), file.name


def test_only_raft_knows_the_library() -> None:
    for file in PACKAGE.parent.rglob("*.py"):
        imports = "\nimport pysyncobj" in (text := file.read_text()) or "\nfrom pysyncobj" in text
        assert not imports or file.parent == PACKAGE, file.name


def test_methods_that_pickle_poll_or_forward_are_barred() -> None:
    barred = [name for name, why in METHODS.items() if why.startswith("barred")]
    member = core()
    for name in [f"_SyncObj__{name}" for name in barred] + list(UNMANGLED):
        with pytest.raises(AssertionError, match="must not run"):
            getattr(member, name)()


def test_the_core_opens_no_threads_pipes_or_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a thread, a pipe or a socket")

    for name in ("os.pipe", "socket.socket", "threading.Thread.start", "socket.getaddrinfo"):
        monkeypatch.setattr(name, refuse)
    before = threading.active_count()
    member = core()
    assert threading.active_count() == before
    assert member.conf.journalFile is member.conf.fullDumpFile is None


def shown(value: object) -> str:
    """Return a value as text; a set has no order, which dictionaries take over from it."""
    if isinstance(value, dict):
        value = sorted(map(repr, value.items()))
    return repr(sorted(map(repr, value)) if isinstance(value, set) else value)


def test_times_come_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member is equal at any time of the library's own clock."""

    def member_at(seconds: float) -> dict[str, object]:
        monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: seconds)
        member = core()
        member.journal.begin({})
        member.become_candidate()
        member.become_leader()
        member.count_answer(member.peers[0], 1, success=True)
        names = [name for name in ATTRIBUTES if name != "raftLog"]
        return {name: shown(getattr(member, f"_SyncObj__{name}")) for name in names}

    assert member_at(5.0) == member_at(5000.0)


def test_random_numbers_come_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj.syncobj.random, "random", lambda: pytest.fail("global random"))
    core().restart_election_timer()


def test_peers_are_walked_in_a_fixed_order() -> None:
    """The library walks a set, whose order differs from run to run for names."""
    names = tuple(f"node {number}" for number in range(9))
    member = Core("node 0", Journal(b"", Members(names)), 0, RaftOptions(), random.Random(1))
    assert [peer.id for peer in member.peers] == list(names[1:])


def test_the_module_lists_reasons() -> None:
    assert syncobj_core.__doc__ is not None
    assert all(len(why) > 10 for why in (*ATTRIBUTES.values(), *METHODS.values()))


def test_a_node_has_one_object_which_is_compared_by_identity() -> None:
    member = core()
    member.leader = 2
    known = {*member._SyncObj__otherNodes, member._SyncObj__selfNode}
    assert {node.id: node for node in known}.keys() == {1, 2, 3}
    assert member.peer(2) in known
    assert member._SyncObj__raftLeader is member.peer(2) is member.voter(2)
    assert member.peer(1) is member.voter(9) is None
    assert syncobj_core.Peer(2) != member.peer(2)
