"""The log of a node: its promises, on the device before anybody hears of them.

::

    storage (kv/storage.py) ── one record a turn ──▶ writer ─▶ segment │ segment │ segment   device
                             ◀── what was promised ── reader ◀──── at opening

It knows neither consensus nor the engine: a record is a set of keys and values, as a write set is.
*Entries* (of the logs of all groups together) lie in their records until nobody wants them. *Notes*
(everything else: hard states, records of the store) are few and small, and are written again at the
beginning of each segment. A segment can therefore go once its entries can.

:mod:`.format` says what the bytes are, ``docs/storage.md`` says it for people.
"""
