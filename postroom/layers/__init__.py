"""Layers: what needs public calls of a store only. An example of how to build one's own.

A layer is a package over ``postroom``, ``postroom.aio`` and ``postroom.errors``. One that is a job
of Spark's is over ``postroom.pipeline`` and a few modules of its jobs as well, which a contract in
``pyproject.toml`` names. It imports nothing else of Postroom, which ``lint-imports`` checks. There
are ``search``, full-text search, and ``report``, a job.

How to build one:

1. **Choose keys.** The data of a layer are ordinary keys under a prefix of its own, tuples of
   ``postroom.key``. They are replicated, exported and read by Spark like all others.
2. **Take the transaction.** A call that changes something has the transaction as its first
   argument. Thus it takes effect together with everything else that the application does::

       async def put(self, tx: aio.Transaction, key: bytes, document: Any) -> None:
           tx.put(record_key(key), ...)                  # at once: reads of it have an order
           tx.enqueue_update(postroom.Put(posting, ...))   # soon after, exactly once

   Updates that need no order are deferred: a transaction that writes few keys has few conflicts.
3. **Read at one timestamp.** ``db.hold()`` keeps a timestamp readable: all reads ``at`` it agree.
4. **Work on stored values.** ``db.as_stored()`` and ``tx.as_stored()`` are the same objects without
   a codec; ``tx.packed(key, value)`` is what ``tx.put`` would store.
5. **Write it once, for asyncio.** In the synchronous form, ``db.core`` and ``tx.core`` are the
   asyncio forms, and ``db.wait(coroutine)`` runs a coroutine over them (``search/sync_index.py``).
6. **Change in steps that can be repeated.** A process may end at any moment. A long change goes
   from state to state. The transaction of each step checks the state (``search/definition.py``).

The application makes the objects of its own layer: ``index = MyIndex(db, "name")``. The calls of
``search`` are methods of the database as well, since :mod:`postroom.databases` adds them.
"""
