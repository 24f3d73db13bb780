"""Anomalies that must not happen, each a script in ``tests/scripts``, on both engines.

The table has what keeps them away: a script fails when that is taken out.

==================================== ==============================================================
script                               kept by
==================================== ==============================================================
anomaly_dirty_write                  ``Transaction._writes``: writes gather in the client, and leave
                                     in one ``CommitTransaction``; one raw write set a proposal
anomaly_dirty_read                   the same; ``LocalReads.read`` asks only what is applied, which
                                     ``View.in_flight`` keeps apart
anomaly_lost_update                  ``ranges.transactions.one_range.check_reads``, keys
anomaly_fuzzy_read                   ``Transaction._read_timestamp`` goes along with every read
anomaly_phantom                      ``check_reads``, spans; ``versions.scan`` at the timestamp
anomaly_read_skew                    ``Transaction._read_timestamp``
anomaly_write_skew                   ``check_reads``, keys and spans
message_sent_without_commit          ``Transaction._sends``; ``Evaluation.reject``
message_committed_without_message    outbox entries in the write set of the commit
message_delivered_twice              the COMMIT record; ``DeliverDue`` deletes in the write set
                                     that delivers
message_lost                         the outbox, stored; ``ReleaseLocks`` frees what was claimed
message_reaped_twice                 ``messaging.claims``; ``Inboxes._find`` at the commit
message_overtaken                    message ids begin with the commit timestamp;
                                     ``Outbox.take_due`` takes the first entries
==================================== ==============================================================
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from postroom.kv.opening import open_engine
from tests import scripts_runner
from tests.client.stores import Store


@pytest.mark.parametrize("name", scripts_runner.scripts())
@pytest.mark.parametrize("engine", ["memory", "disk"])
def test_script(engine: str, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = Store(partial(open_engine, tmp_path / "store") if engine == "disk" else None)
    scripts_runner.check(name, store, rewrite=request.config.getoption("--rewrite"))
    store.db.close()
