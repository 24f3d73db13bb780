"""A program that fills a store with departures, for the pipeline beside it (docs/jobs.md).

It keeps the history readable for a while: a pipeline that begins later still sees every change.

Run it: python examples/airport_pipeline/departures.py 127.0.0.1:7401 600
"""

from __future__ import annotations

import sys
import threading

import postroom

DEPARTURES = {
    b"departure/1": {"airport": "JFK", "carrier": "B6", "delay": 12},
    b"departure/2": {"airport": "JFK", "carrier": "DL", "delay": -2},
    b"departure/3": {"airport": "LGA", "carrier": "DL", "delay": 30},
    b"departure/4": {"airport": "EWR", "carrier": "UA", "delay": 0},
}


def main(address: str, keep_seconds: float = 0.0) -> None:
    with (
        postroom.connect(address, insecure=True, codec="json") as db,
        db.hold(),  # keeps all changes from now on
    ):
        for key, departure in DEPARTURES.items():
            db.put(key, departure)
        db.put(b"departure/2", DEPARTURES[b"departure/2"] | {"delay": 4})  # it was late after all
        db.delete(b"departure/4")  # and this one was cancelled
        print(f"{len(DEPARTURES)} departures were written, one changed, one was cancelled")
        threading.Event().wait(keep_seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
