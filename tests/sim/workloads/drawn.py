"""The workloads that a run draws from."""

from __future__ import annotations

from random import Random  # noqa: TID251 - made from the seed
from typing import Final

from tests.sim.workloads.appointments import Appointments
from tests.sim.workloads.archives import Archives
from tests.sim.workloads.bank import Bank
from tests.sim.workloads.contenders import Contenders, ContendersOverRanges
from tests.sim.workloads.counters import Counters
from tests.sim.workloads.couriers import Couriers
from tests.sim.workloads.jobs import Jobs
from tests.sim.workloads.keepers import Keepers
from tests.sim.workloads.large import Large
from tests.sim.workloads.ledger import Ledger
from tests.sim.workloads.lists import Lists
from tests.sim.workloads.mailboxes import Mailboxes
from tests.sim.workloads.reapers import Reapers
from tests.sim.workloads.ring import Ring
from tests.sim.workloads.seats import Seats
from tests.sim.workloads.spans import Spans
from tests.sim.workloads.trials import Trials
from tests.sim.workloads.waiters import Waiters
from tests.sim.workloads.watchers import Watchers
from tests.sim.workloads.workload import Workload

WORKLOADS: Final[tuple[type[Workload], ...]] = (
    Appointments,
    Archives,
    Bank,
    Counters,
    Large,
    Ledger,
    Lists,
    Mailboxes,
    Reapers,
    Ring,
    Seats,
    Spans,
    Waiters,
    Watchers,
)
OVER_RANGES: Final[tuple[type[Workload], ...]] = (
    Appointments,
    Bank,
    ContendersOverRanges,
    Counters,
    Couriers,
    Ledger,
    Lists,
    Reapers,
    Seats,
)
"""The workloads that may run while ranges split."""
QUEUES_SHARE: Final = 0.3
TRIALS_SHARE: Final = 0.3
CONTENDERS_SHARE: Final = 0.2
KEEPERS_SHARE: Final = 0.2


def besides(seed: int) -> list[Workload]:
    """Return queues, messages that always fail, or kept positions, for some runs.

    They have chances of their own: the other workloads stay as they are.
    """
    jobs: list[Workload] = [Jobs()] if Random(f"queues {seed}").random() < QUEUES_SHARE else []
    if Random(f"contenders {seed}").random() < CONTENDERS_SHARE:
        jobs.append(Contenders())
    if Random(f"keepers {seed}").random() < KEEPERS_SHARE:
        jobs.append(Keepers())
    return [*jobs, Trials()] if Random(f"trials {seed}").random() < TRIALS_SHARE else jobs
