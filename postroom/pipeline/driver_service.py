"""The service in the driver's process that outlives a planner: open folders, held timestamps.

::

    planner ──{"do": "address", path}──▶ DriverService ── LoopbackServer, one a folder
            ──{"do": "hold", store, at}─▶              ── hold(), over the driver's own connection;
                                                          a folder is opened for it, too

A planner asks over the loopback device, a line of JSON for each question, and shows a secret that
only this session's data source knows. A protection is given back when Spark has nothing to do and
the data frame was not used for the time that it asked for (``protect_for``). The end of the driver
ends its connections, and with them all protections.
"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroom import errors
from postroom.errors import Error, Invalid, StoreLocked, Unavailable
from postroom.pipeline import connections
from postroom.pipeline.options import StoreAddress

if TYPE_CHECKING:
    from postroom.server.loopback import LoopbackServer

ASK_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 1.0
WHOLE_AT_ONCE: Final = 8
_LINE_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class DriverLink:
    """The address of a driver service, pickled with the data source."""

    port: int
    secret: str = field(repr=False)

    def address(self, store: StoreAddress) -> StoreAddress:
        """Return the address of a store for tasks: the driver opens and serves a folder."""
        if store.connect:
            return store
        answer = self._ask({"do": "address", "path": store.path})
        return connections.at_address(store, str(answer["address"]))

    def begin(
        self, store: StoreAddress, at: int, seconds: float, *, whole: bool
    ) -> tuple[StoreAddress, int]:
        """Return a store for tasks, and a timestamp (0: now) that is kept readable there."""
        answer = self._ask(_protect(store, at, seconds, whole=whole))
        reached = store if store.connect else connections.at_address(store, str(answer["address"]))
        return reached, int(answer["at"])

    @contextmanager
    def holding(self, store: StoreAddress, at: int, seconds: float) -> Iterator[None]:
        """Keep a timestamp readable from now on.

        The answer is awaited at the end of the block: the store can be asked something meanwhile.
        """
        with self._awaited_answer(_protect(store, at, seconds, whole=False)) as line:
            yield
            _answer(line)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._awaited_answer(question) as line:
            return _answer(line)

    @contextmanager
    def _awaited_answer(self, question: dict[str, Any]) -> Iterator[socket.socket]:
        with _reaching():
            line = socket.create_connection(("127.0.0.1", self.port), ASK_SECONDS)
        with line:
            with _reaching():
                line.sendall(json.dumps({**question, "secret": self.secret}).encode() + b"\n")
            yield line


def _protect(store: StoreAddress, at: int, seconds: float, *, whole: bool) -> dict[str, Any]:
    return {"do": "hold", "store": asdict(store), "at": at, "seconds": seconds, "whole": whole}


def _answer(line: socket.socket) -> dict[str, Any]:
    with _reaching(), line.makefile("rb") as answers:
        answer: dict[str, Any] = json.loads(answers.readline())
    if "error" in answer:
        kind = getattr(errors, answer["error"], Error)
        raise kind(answer["message"])
    return answer


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        told = (isinstance(error, OSError) and error.strerror) or error
        raise Unavailable(
            f"the program that has registered the data source cannot be reached ({told}); nothing "
            "was read: it must go on for as long as the session does, and call register() again "
            "after pipeline.close()"
        ) from error


@dataclass
class _Protection:
    """A protected timestamp."""

    stack: ExitStack
    at: int
    until: float
    whole: bool


class DriverService:
    """The service: see the module. It serves from its making until it is closed.

    Args:
        is_busy: whether Spark has anything to do.
        monotonic: seconds since an arbitrary start.
    """

    def __init__(self, is_busy: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self._is_busy = is_busy
        self._monotonic = monotonic
        self._secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._folders: dict[str, LoopbackServer] = {}
        self._protections: dict[tuple[StoreAddress, int], _Protection] = {}
        self._over = threading.Event()
        self._server = _Server(self)
        self.line = DriverLink(self._server.server_address[1], self._secret)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._look, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def protected(self) -> list[int]:
        """Return the timestamps that are protected."""
        with self._lock:
            return sorted(each.at for each in self._protections.values())

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a planner's question."""
        if not secrets.compare_digest(str(question.get("secret", "")), self._secret):
            return {"error": "AccessDenied", "message": "the secret is not that of this session"}
        try:
            if question["do"] == "address":
                return {"address": self._address(question["path"])}
            store = dict(question["store"])
            store["tls"] = None if store["tls"] is None else tuple(store["tls"])
            reached = StoreAddress(**store)
            if not reached.connect:
                reached = connections.at_address(reached, self._address(reached.path))
            at = self._protect(
                reached, int(question["at"]), float(question["seconds"]),
                whole=bool(question["whole"]),
            )  # fmt: skip
        except Error as error:
            return {"error": type(error).__name__, "message": str(error)}
        except ValueError as error:
            return {"error": "Invalid", "message": str(error)}
        except OSError as error:
            return {"error": "Unavailable", "message": str(error)}
        return {"at": at, "address": reached.connect}

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock, and refuse after the end: a store opened then would stay open."""
        with self._lock:
            if self._over.is_set():
                raise Unavailable("the session has ended; nothing was read: register in a new one")
            yield

    def _address(self, path: str) -> str:
        from postroom.server.loopback import LoopbackServer  # noqa: PLC0415 - tasks need no server

        folder = str(Path(path).resolve())
        with self._open():
            if folder not in self._folders:
                try:
                    self._folders[folder] = LoopbackServer(folder, create=False)
                except StoreLocked as locked:
                    if locked.address:  # its application serves it
                        return locked.address
                    raise
            return self._folders[folder].address

    def _protect(self, store: StoreAddress, at: int, seconds: float, *, whole: bool) -> int:
        until = self._monotonic() + seconds
        with self._open():
            protected = self._protections.get((store, at))
            if protected is not None:
                protected.until = max(protected.until, until)
                return at
            if whole:
                self._make_room(store, WHOLE_AT_ONCE)
            stack = ExitStack()
            found = self._enter(stack, store, at, whole=whole)
            self._protections[store, found] = _Protection(stack, found, until, whole)
            return found

    def _enter(self, stack: ExitStack, store: StoreAddress, at: int, *, whole: bool) -> int:
        while True:
            try:
                protected = connections.database(store).hold(at or None, whole=whole and not at)
                return int(stack.enter_context(protected))
            except Invalid:  # others may hold many, and one of ours has to go
                if not whole or at or not self._make_room(store, 1):
                    raise

    def _make_room(self, store: StoreAddress, most: int) -> bool:
        """Let go of the whole timestamp that is needed least, if Spark does nothing just now.

        A store keeps ``most`` timestamps as a whole.

        Returns:
            Whether one has gone.
        """
        whole = [
            key
            for key, protected in self._protections.items()
            if protected.whole and key[0] == store
        ]
        if len(whole) < most or self._is_busy():
            return False
        self._protections.pop(
            min(whole, key=lambda key: self._protections[key].until)
        ).stack.close()
        return True

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.release_unused()

    def release_unused(self) -> None:
        """Give back the protections that are not needed any more."""
        now = self._monotonic()
        with self._lock:
            over = [key for key, protected in self._protections.items() if protected.until <= now]
        if not over or self._is_busy():
            return
        with self._lock:
            for key in over:  # one may have been used meanwhile, or given back
                protected = self._protections.get(key)
                if protected is not None and protected.until <= now:
                    self._protections.pop(key).stack.close()

    def close(self) -> None:
        """Give everything back, and close the folders. Idempotent."""
        if self._over.is_set():
            return
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        with self._lock:
            stores = {store for store, _ in self._protections}
            for protected in self._protections.values():
                protected.stack.close()
            self._protections.clear()
            for store in stores:
                connections.close(store)
            for folder in self._folders.values():
                folder.close()
            self._folders.clear()


class _Server(socketserver.ThreadingTCPServer):
    """The server, with a thread for each question."""

    daemon_threads = True

    def __init__(self, service: DriverService) -> None:
        self.service = service
        super().__init__(("127.0.0.1", 0), _QuestionHandler)


class _QuestionHandler(socketserver.StreamRequestHandler):
    """The handler of one question, with one answer."""

    timeout = ASK_SECONDS
    server: _Server

    def handle(self) -> None:
        """Answer the question; hang up on a peer that sends nothing, or nonsense."""
        try:
            question = json.loads(self.rfile.readline(_LINE_BYTES))
            answer = self.server.service.answer(question)
            self.wfile.write(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
