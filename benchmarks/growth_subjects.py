"""The subjects of ``python -m benchmarks growth``. Importing their modules registers them."""

from benchmarks import growth_keys, growth_messages, growth_queues
from benchmarks.growing import SUBJECTS, Growing, Rates

__all__ = ["SUBJECTS", "Growing", "Rates", "growth_keys", "growth_messages", "growth_queues"]
