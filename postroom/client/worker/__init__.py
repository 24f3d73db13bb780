"""Workers: functions that are called with messages of queues and inboxes.

::

    Worker ── run ──┬─ a TaskLoop for each task    claims messages, calls the function
                    ├─ an InboxLoop for each inbox finds keys with mail, locks one, calls the
                    │                              function
                    └─ Supervisor                  begins a loop again that has failed

    Caller ── a transaction: the function's writes, what it sends, the acknowledgement

All of it runs on one event loop; functions that are no coroutine functions run in threads. A worker
on a synchronous database has a loop of its own, and reaches the store through threads
(:mod:`postroom.client.bridge`).
"""
