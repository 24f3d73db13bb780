"""The split of a range: a right half begins at a key, and no data is moved.

::

    PrepareSplit ─▶ record "split" ─ DivideSome ... ─▶ Split, alone in its entry ─┬─▶ left, shorter
        │ (:mod:`.preparing`)     (:mod:`.service`)       (:mod:`.halving`)       └─▶ right, new
        └── CancelSplit ─▶ no record                                at each replica: the trigger

The right half owns its keys from the entry on, with everything that lies under them. The metadata
of a range falls into four classes:

* *Stays left*: both outboxes, dead letters, counters. They have a sender's identity.
* *Goes with its key*: postponed messages that hold up an inbox, the marks of channels, and records
  of bulk loads. They are few, and ``Split`` moves them. Lists of garbage stay left, where the keys
  of the right half are passed over. The right half looks once for garbage of before its beginning
  (:mod:`postroom.ranges.sweep`).
* *Copied beforehand*: the index of queues. The copy of what goes lies under the id of the right
  half, and belongs to this range for now (:mod:`postroom.messaging.queues.dividing`).
* *New*: descriptor, applied record, lease and what is collected (:mod:`.records`).

A range into which an image is restored is not split.
"""
