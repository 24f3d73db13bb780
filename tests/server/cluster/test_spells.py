"""What is logged once, though it goes on."""

from __future__ import annotations

from postroom.server.cluster.spells import KNOWN_MAX, QUIET_SECONDS, Spells


def test_a_spell_begins_once_and_again_after_a_quiet_time() -> None:
    spells = Spells()
    assert spells.begins("a", 0.0)
    assert not spells.begins("a", QUIET_SECONDS)
    assert not spells.begins("a", 2 * QUIET_SECONDS)
    assert spells.begins("b", 2 * QUIET_SECONDS)
    assert spells.begins("a", 4 * QUIET_SECONDS)


def test_what_it_knows_is_limited() -> None:
    spells = Spells()
    for number in range(2 * KNOWN_MAX):
        assert spells.begins(number, 0.0)
    assert len(spells._last) == KNOWN_MAX
