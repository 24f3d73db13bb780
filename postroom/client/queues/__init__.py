"""Queues as applications use them.

::

    tx.enqueue ──────────▶ sending     what a transaction does to queues, with its commit
    db.queue(name) ──────▶ queue       settings, looking at messages, claims; sync_queue: blocking
    q.receive ───────────▶ consuming   claims ahead of need: intake decides, consuming asks
    their results ───────▶ messages    a message, an attempt of it, a handle

The logic is written once, as coroutines; the synchronous forms run the same ones.
"""
