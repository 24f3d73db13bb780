"""The terms and indices that no member can have reached: messages with them are false or damaged.

Terms and indices are numbers below 2^63, and a member adopts the higher one that it is told. One
message that names the last of them would end a group for good: there would be no next term to hold
an election in, after any number of restarts. A message may therefore be only so far ahead of what
this member knows.

* *Terms.* A term is entered by an election, and a member campaigns again only after its election
  time-out (0.5 s and more), when most others would vote for it. A member that was away while the
  others did nothing but hold elections for 97 days is behind by ``TERM_JUMP_MAX``. A forger of
  messages needs 2^39 of them to get to the end of all terms. Each makes the receiver sync its new
  term, which takes years.
* *Indices.* A group that appends 100,000 entries a second gets ``INDEX_JUMP_MAX`` ahead of a new
  member in 89 years.

Answers about a leader's own entries have a closer bound: :mod:`.replication`.
"""

from __future__ import annotations

from postroom.limits import INDEX_JUMP_MAX, TERM_JUMP_MAX
from postroom.raft.messages import (
    Append,
    Appended,
    Chunk,
    Message,
    PreVote,
    Vote,
)


def beyond_reach(message: Message, term: int, last_index: int) -> str | None:
    """Return the term or index in ``message`` that no member can have reached, or ``None``.

    Args:
        message: from another member.
        term: this member's.
        last_index: the last index of this member's log.
    """
    if message.term - term > TERM_JUMP_MAX:
        return f"term {message.term} cannot have been reached, here it is {term}"
    index = 0
    match message:
        case Append():
            index = max(message.prev_index, message.commit_index, message.base_index)
        case Appended() | Chunk():
            index = message.index
        case Vote() | PreVote():
            index = message.last_index
            if message.last_term > message.term:
                return (
                    f"it has an entry of term {message.last_term}, and asks in term {message.term}"
                )
        case _:
            pass
    if index - last_index > INDEX_JUMP_MAX:
        return f"entry {index} cannot have been reached, here the last is {last_index}"
    return None
