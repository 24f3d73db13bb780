"""Backups of a store: all that it has at one timestamp, in files of one folder.

An *image* (:mod:`postroom.messaging.image_entries`) is read page by page and stored as it comes.
Nothing is decoded on the way, so nothing is lost or sent twice: ids, attempts, marks and counters
are restored as they were.

* ``blocks``, ``manifest``, ``folder``: the format; what is damaged is refused by name;
* ``merging``, ``chain``: increments, which have what has changed since the backup before;
* ``taking``, ``pace``, ``recount``: the backup of a store that is in use;
* ``verifying``, ``restoring``: the way back;
* ``calls``: ``db.backup`` in both forms.
"""

from postroom.backup.restoring import RestoredBackup, find, restore
from postroom.backup.taking import BackupResult
from postroom.backup.verifying import verify

__all__ = ["BackupResult", "RestoredBackup", "find", "restore", "verify"]
