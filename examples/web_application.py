"""A web application and its workers: three processes, and one store.

The web process takes orders: it writes the order and the task for it in one transaction. The worker
process does the tasks. Both reach the store that a third process serves, so there may be any number
of them. docs/web-applications.md has the same with FastAPI and Django, and units for systemd.

Run it: python examples/web_application.py
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import postroom

worker = postroom.Worker()  # 'postroom worker' gives it the store


@worker.task(queue="orders", kind="invoice")
def invoice(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
    """Write the invoice of an order, in the transaction that acknowledges its task."""
    tx.put(b"invoice/" + message.payload, b"invoice of order " + message.payload)


def take_order(tx: postroom.Transaction, number: bytes) -> None:
    """Store the order and the task for it together, or neither."""
    tx.put(b"order/" + number, b"taken")
    invoice.enqueue(tx, number, id=number)


# --- the web process


def application(
    db: postroom.Database,
) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    """Return a WSGI application: POST /orders/7 takes an order, GET /orders/7 tells its invoice."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        number = environ["PATH_INFO"].removeprefix("/orders/").encode()
        if environ["REQUEST_METHOD"] == "POST":
            db.run(take_order, number)
        found = db.get(b"invoice/" + number)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"invoice": None if found is None else found.decode()}).encode()]

    return answer


class QuietHandler(WSGIRequestHandler):
    """A handler that writes no line for each request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called there
        """Write nothing."""


def serve_web(address: str) -> None:
    """Answer requests until SIGTERM; one connection of the process serves all its threads."""
    with postroom.connect(address, insecure=True) as db:
        server = make_server("127.0.0.1", 0, application(db), handler_class=QuietHandler)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        print(server.server_port, flush=True)
        server.serve_forever()
        server.server_close()


# --- all three


def start(*command: str) -> subprocess.Popen[str]:
    """Start a process; its first line of output says that it is ready."""
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=here,
    )  # fmt: skip


def first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line of a process: it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{process.args!r} has ended")
    return line


def free_address() -> str:
    """Return an address at which no program listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def ask(method: str, url: str) -> Any:
    """Return the answer of the web process."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        return json.load(answer)


def main() -> None:
    address = free_address()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            start("-m", "postroom", "serve", "--path", folder, "--listen", address, "--insecure")
        ]
        try:
            first_line(processes[0])
            with postroom.connect(address, insecure=True) as db:
                db.create_queue("orders")
                processes.append(start(__file__, address))
                port = first_line(processes[1])
                application = "web_application:worker"
                processes.append(
                    start(
                        "-m", "postroom", "worker", application, "--connect", address, "--insecure"
                    )
                )
                first_line(processes[2])
                url = f"http://127.0.0.1:{port}/orders/7"
                before = db.now()
                print("taken:", ask("POST", url))
                for _ in db.watch(b"invoice/7", after=before, timeout=60):
                    break  # a browser would ask again after a while
                print("done:", ask("GET", url))
                assert ask("GET", url) == {"invoice": "invoice of order 7"}
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                process.communicate()


if __name__ == "__main__":
    serve_web(sys.argv[1]) if len(sys.argv) > 1 else main()
