"""The requests that wait for something about a queue that is no message: credit, or a result.

Each waits for a token. Code that ends what a token stands for wakes it, which costs a lookup if no
request waits for it. The woken tokens are taken, and their requests answered, once the proposal is
applied. Only the leaseholder's memory has them; with its lease they are gone, and clients ask the
next leaseholder.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, TypeAlias


class CreditToken(NamedTuple):
    """The token for which a consumer without credit waits.

    Attributes:
        consumer: its id.
    """

    consumer: bytes


class ResultToken(NamedTuple):
    """The token for which a request for the result of a message waits.

    Attributes:
        queue: the name of the queue.
        kind, id: those of the message.
    """

    queue: str
    kind: str
    id: bytes


Token: TypeAlias = CreditToken | ResultToken


class TokenWaits:
    """The requests that wait for tokens. Its length is their number.

    Attributes:
        results: how many of them wait for results.
    """

    def __init__(self) -> None:
        self.results = 0
        self._requests: dict[int, tuple[object, Token]] = {}
        self._awaited: Counter[Token] = Counter()
        self._woken: dict[Token, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: object, token: Token) -> Token:
        """Return the token that ``request`` waits for; it may wait for it already."""
        if id(request) not in self._requests:
            self._requests[id(request)] = request, token
            self._awaited[token] += 1
            self.results += isinstance(token, ResultToken)
        return token

    def remove(self, request: object) -> None:
        """Forget a request: it is answered, or nobody waits for its answer any more."""
        _, token = self._requests.pop(id(request), (None, None))
        if token is None:
            return
        self.results -= isinstance(token, ResultToken)
        self._awaited[token] -= 1
        if not self._awaited[token]:
            del self._awaited[token]

    def wake(self, token: Token) -> None:
        """Wake the requests that wait for a token, if there are any."""
        if token in self._awaited:
            self._woken[token] = None

    def wake_results(self, queue: str) -> None:
        """Wake the requests for results of a queue: it is gone, or set aside."""
        for token in self._awaited:
            if isinstance(token, ResultToken) and token.queue == queue:
                self._woken[token] = None

    def all(self) -> list[object]:
        """Return all tokens that requests wait for."""
        return list(self._awaited)

    def take_woken(self) -> list[object]:
        """Return the tokens that were woken since, each once."""
        taken: list[object] = list(self._woken)
        self._woken.clear()
        return taken

    def clear(self) -> None:
        """Forget all requests, at the end of the lease."""
        self.results = 0
        self._requests.clear()
        self._awaited.clear()
        self._woken.clear()
