"""Terms and indices that nobody can have reached: who names one lies, or its bytes are spoiled.

Terms and indices are numbers below 2^63, and a member takes over the higher one that it is told:
one message that names the last of them would end a group for good, for there would be no next term
to hold an election in, after any number of restarts. So there is a bound to how far one message may
be ahead of what this member knows.

* *Terms.* A term is entered by an election, and a member campaigns again only after its election
  time-out (0.5 s and more), when most others would vote for it. Whoever was away while the others
  did nothing but hold elections for 97 days is behind by ``TERM_JUMP_MAX``. Who forges messages
  gets to the end of all terms no sooner than with 2^39 of them, each of which makes the receiver
  sync its new term: years.
* *Indices.* A group that appends 100,000 entries a second gets ``INDEX_JUMP_MAX`` ahead of a new
  member in 89 years.

What a leader is told of its own entries is bounded more closely: :mod:`.replication`.
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
    """What ``message`` names that nobody can have reached; ``None``: nothing.

    Args:
        message: from another member.
        term: this member's.
        last_index: of this member's log.
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
