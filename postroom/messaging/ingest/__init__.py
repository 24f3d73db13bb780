"""The ways in which many rows enter a store at once: staged batches, bulk loads, restores.

Each of them is an *ingest*: a thing with a record, a state, and one try (*run* or *job*) that may
add rows to it. Which event leads from which state to which other one is one table
(:mod:`.machine`). The evaluators do the work of the events::

    machine ── states, events, the record of an ingest
       ├── batches    rows wait unseen, until their batch is published        (sinks of Spark)
       │     └── staging    their records, and the deletion of what nobody publishes any more
       ├── loads      rows go straight to their places in an empty span       (bulk loads)
       └── restores   entries of an image go to their places in a closed store

Every request may be repeated, and a chunk that is there is passed over. Therefore clients send
chunks again until they are answered (:mod:`postroom.client.staging`).
"""
