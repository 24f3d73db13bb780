"""The invariants of a ready cache: each of its sets follows from its groups."""

from __future__ import annotations

from postroom.messaging.queues.ready import ReadyCache


def check_cache(cache: ReadyCache) -> None:
    """Raise ``AssertionError`` unless the sets of the cache are what its groups say."""
    groups = cache._groups
    there = {name: group.queued() for name, group in groups.items()}
    listed = {key: entry for queued in there.values() for key, _, entry in queued}
    assert listed == cache._alive, "an entry is in no group, or a group has one that is gone"
    for name, group in groups.items():
        assert group.count == len(there[name]), f"{name!r} is miscounted"
        assert all(len(lane) for lane in group._lanes.values()), f"a lane of {name!r} is empty"
        assert group.count or group.more, f"{name!r} has nothing here, and no more is stored"
        assert all(entry.group == name for _, _, entry in there[name]), (
            f"{name!r} has others' entries"
        )
        if group.more and there[name]:
            assert there[name][-1][0] <= group.last, f"{name!r} has entries behind a gap"
    assert set(cache._more) == {name for name, group in groups.items() if group.more}
    assert set(cache._hungry) == {name for name, group in groups.items() if not group.count}
    sizes = {name: power for power, names in cache._sizes._by_power.items() for name in names}
    assert sizes == {name: g.count.bit_length() for name, g in groups.items() if g.count}
    assert len(cache) <= cache.size, "it holds too many entries"
    assert len(groups) <= cache.size, "it holds too many groups"
