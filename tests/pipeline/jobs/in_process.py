"""Jobs without Spark: their tasks run here, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from postroom import errors
from postroom.errors import Error
from postroom.pipeline.jobs.job import tried


class Killed(BaseException):
    """The program has ended in the middle of things."""


class InProcess:
    """A substitute for ``spread``, which does the work in this process.

    Attributes:
        begun: how many tasks were begun.
        kill_at: the number of the task before which the program ends; ``None``: none.
        twice: whether each task runs twice.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        self.begun = 0
        self.kill_at: int | None = None
        self.twice = False
        for module in modules:
            monkeypatch.setattr(module, "spread", self)

    def __call__(
        self, spark: Any, act: Callable[[Any], bytes], things: Sequence[Any], stage: str,
        progress: Any,
    ) -> list[bytes]:  # fmt: skip
        del spark
        said = []
        for thing in things:
            if self.begun == self.kill_at:
                raise Killed
            self.begun += 1
            for _ in range(1 + self.twice):
                failed, answer = tried(act, thing)
            if failed:
                raise getattr(errors, failed, Error)(answer.decode())
            said.append(answer)
            progress(stage, len(said), len(things))
        return said
