"""The sinks of the data source ``postroom``: rows of Spark become writes, each exactly once.

::

    options.py   what is asked for            rows.py    Arrow batches → writes, checked
    staged.py    any writes, batch or stream  loads.py   a bulk load into an empty span

``docs/pipeline-inside.md`` tells how a batch is staged, decided and published.
"""
