"""An injector of faults: it lets strikes fall on real processes, and mends what they broke.

A strike at a node that is down already, or at a leader when nobody leads, does nothing. Nodes
that end by themselves are started again, as a service manager would; whether they were allowed to
end is for :meth:`FaultInjector.verdict`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tests.cluster.disks import SmallDisk
from tests.cluster.harness import ClusterProcesses, NodeProcess
from tests.cluster.places import Namespaces
from tests.cluster.strikes import LEADER, Strike

Suffer = Callable[[Strike, NodeProcess], Awaitable[bool]]

SUPERVISE_SECONDS = 0.1
RESTART_SECONDS = 0.5


def _is_alarming(line: str) -> bool:
    """Return whether a line tells of something unexpected in the node."""
    return line.startswith("Traceback") or " ERROR asyncio" in line or " CRITICAL " in line


class Watch(Protocol):
    """The injector's view of the cluster."""

    def leader(self) -> NodeProcess | None:
        """Return the leader, as far as is known."""

    def is_settled(self) -> bool:
        """Return whether all nodes are there and have everything."""

    async def kill_a_client(self) -> bool:
        """Kill a client, and let another one take its place."""


class FaultInjector:
    """An injector that lets strikes fall on a cluster, and mends what they broke.

    Attributes:
        seen: how often what has struck.
        told: a line for each of them.
    """

    def __init__(self, cluster: ClusterProcesses, watch: Watch) -> None:
        self.seen: Counter[str] = Counter()
        self.told: list[str] = []
        self.is_over = False
        self._cluster = cluster
        self._watch = watch
        self._busy: set[object] = set()
        self._filled: set[int] = set()
        self._promotions_before: int | None = None
        self._complaints: list[str] = []
        self._began = asyncio.get_running_loop().time()
        self._kinds: dict[str, Suffer] = {
            "kill": self._kill, "kill all": self._kill_all, "stop": self._stop,
            "pause": self._pause, "wipe": self._wipe, "fill": self._fill, "clock": self._clock,
            "isolate": self._isolate, "silence": self._silence, "cut": self._cut,
            "shun": self._shun, "deafen": self._deafen, "throttle": self._throttle,
            "leave": self._leave,
        }  # fmt: skip

    async def run(self, strikes: Sequence[Strike]) -> None:
        """Let all strikes fall; whatever they broke is mended when this returns."""
        supervisor = asyncio.create_task(self._supervise())
        async with asyncio.TaskGroup() as group:
            for strike in strikes:
                await asyncio.sleep(self._began + strike.at_seconds - self._now())
                group.create_task(self._fall(strike))
        self.is_over = True
        await supervisor

    def verdict(self) -> None:
        """Raise ``AssertionError`` if a node has ended that had no reason to."""
        for node in self._cluster.nodes:
            self._complaints += [
                f"{node} wrote: {line}" for line in node.lines if _is_alarming(line)
            ]
        assert not self._complaints, "\n".join(self._complaints)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def note(self, what: str) -> None:
        """Note something that happens now."""
        self.told.append(f"{self._now() - self._began:6.2f}: {what}")

    async def _fall(self, strike: Strike) -> None:
        nodes = self._cluster.nodes
        node = self._watch.leader() if strike.node == LEADER else nodes[strike.node - 1]
        if node is None or not await self._kinds[strike.kind](strike, node):
            self.seen["into the void"] += 1
        else:
            self.seen[strike.kind] += 1

    def _tell(self, strike: Strike, node: NodeProcess, more: str = "") -> None:
        leads = " (leader)" if node is self._watch.leader() else ""
        detail = f" {strike.detail}" if strike.detail else ""
        self.note(
            f"{strike.kind} node {node.number}{leads}{more}{detail}, {strike.lasts_seconds} s"
        )

    # --- processes

    async def _kill(self, strike: Strike, node: NodeProcess) -> bool:
        return await self._down(strike, node, lambda: asyncio.to_thread(node.kill))

    async def _stop(self, strike: Strike, node: NodeProcess) -> bool:
        async def stop() -> None:
            may_fail = node.number in self._filled or not node.is_ready
            code = await asyncio.to_thread(node.stop)
            if code and not may_fail:
                self._complaints.append(f"{node} was told to stop, and ended with {code}")

        return await self._down(strike, node, stop)

    async def _wipe(self, strike: Strike, node: NodeProcess) -> bool:
        if not self._watch.is_settled() or self._is_replacing():
            return False

        async def wipe() -> None:
            self._promotions_before = self._promotions()
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.wipe)

        return await self._down(strike, node, wipe)

    def _is_replacing(self) -> bool:
        """Return whether a node that lost its disk is no voter yet, so that no other one may."""
        before = self._promotions_before
        return before is not None and self._promotions() == before

    def _promotions(self) -> int:
        return sum(
            "Promote(" in line and line.endswith("applied")
            for node in self._cluster.nodes
            for line in node.lines
        )

    async def _down(
        self, strike: Strike, node: NodeProcess, end: Callable[[], Awaitable[None]]
    ) -> bool:
        if not node.runs or not self._take(node.number):
            return False
        self._tell(strike, node)
        await end()
        await asyncio.sleep(strike.lasts_seconds)
        node.start()
        self._busy.discard(node.number)
        return True

    async def _kill_all(self, strike: Strike, _: NodeProcess) -> bool:
        victims = [each for each in self._cluster.nodes if each.runs and self._take(each.number)]
        self.note(f"kill all ({len(victims)}), {strike.lasts_seconds} s")
        for node in victims:
            await asyncio.to_thread(node.kill)
        await asyncio.sleep(strike.lasts_seconds)
        for node in victims:
            node.start()
            self._busy.discard(node.number)
        return True

    async def _pause(self, strike: Strike, node: NodeProcess) -> bool:
        if not node.runs or not self._take(node.number):
            return False
        self._tell(strike, node)
        node.pause()
        await asyncio.sleep(strike.lasts_seconds)
        node.resume()
        self._busy.discard(node.number)
        return True

    async def _supervise(self) -> None:
        """Start nodes again that have ended by themselves."""
        while not self.is_over:
            await asyncio.sleep(SUPERVISE_SECONDS)
            for node in self._cluster.nodes:
                if not node.runs and self._take(node.number):
                    await self._start_again(node)

    async def _start_again(self, node: NodeProcess) -> None:
        code = await asyncio.to_thread(node.wait)
        last = node.lines[-1] if node.lines else "nothing"
        self.note(f"node {node.number} has ended by itself ({code}): {last}")
        if node.number in self._filled:
            self.seen["ended for want of room"] += 1
        else:
            self._complaints.append(f"{node} has ended by itself ({code}): {last}")
        await asyncio.sleep(RESTART_SECONDS)
        node.start()
        self._busy.discard(node.number)

    def _take(self, what: object) -> bool:
        """Begin to strike a node, unless something else is being done to it; return whether."""
        if what in self._busy:
            return False
        self._busy.add(what)
        return True

    # --- disks and clocks

    async def _fill(self, strike: Strike, node: NodeProcess) -> bool:
        disk = node.disk
        assert isinstance(disk, SmallDisk)
        assert isinstance(strike.detail, int)
        if not self._take(disk):
            return False
        self._tell(strike, node, ", bytes left:")
        self._filled.add(node.number)
        disk.fill(strike.detail)
        await asyncio.sleep(strike.lasts_seconds)
        disk.free()
        self._busy.discard(disk)
        return True

    async def _clock(self, strike: Strike, node: NodeProcess) -> bool:
        if not self._take(("clock", node.number)):
            return False
        self._tell(strike, node, ", seconds ahead:")
        node.set_clock(float(strike.detail))
        await asyncio.sleep(strike.lasts_seconds)
        node.set_clock(0.0)
        self._busy.discard(("clock", node.number))
        return True

    # --- the network

    async def _isolate(self, strike: Strike, node: NodeProcess) -> bool:
        number, place = node.number, self._network
        return await self._cable(
            strike, node, ("link", number),
            lambda: place.isolate(number), lambda: place.rejoin(number),
        )  # fmt: skip

    async def _silence(self, strike: Strike, node: NodeProcess) -> bool:
        number, other, place = node.number, strike.other, self._network
        if number == other:
            return False
        return await self._cable(
            strike, node, ("way", number, other),
            lambda: place.silence(number, other), lambda: place.unsilence(number, other),
            f" to {other}",
        )  # fmt: skip

    async def _cut(self, strike: Strike, node: NodeProcess) -> bool:
        return await self._apart(strike, node, [strike.other])

    async def _shun(self, strike: Strike, node: NodeProcess) -> bool:
        return await self._apart(strike, node, [each.number for each in self._cluster.nodes])

    async def _apart(self, strike: Strike, node: NodeProcess, others: list[int]) -> bool:
        pairs = [(node.number, other) for other in others if other != node.number]
        ways = [("way", *way) for one, other in pairs for way in ((one, other), (other, one))]
        if not ways or not self._busy.isdisjoint(ways):
            return False
        self._busy.update(ways)
        self._tell(strike, node, f" from {', '.join(str(other) for _, other in pairs)}")
        for _, sender, receiver in ways:
            await asyncio.to_thread(self._network.silence, sender, receiver)
        await asyncio.sleep(strike.lasts_seconds)
        for _, sender, receiver in ways:
            await asyncio.to_thread(self._network.unsilence, sender, receiver)
        self._busy.difference_update(ways)
        return True

    async def _deafen(self, strike: Strike, node: NodeProcess) -> bool:
        number, place = node.number, self._network
        return await self._cable(
            strike, node, ("clients", number),
            lambda: place.deafen(number), lambda: place.undeafen(number),
        )  # fmt: skip

    async def _throttle(self, strike: Strike, node: NodeProcess) -> bool:
        number, place, rate = node.number, self._network, str(strike.detail)
        return await self._cable(
            strike, node, ("line", number),
            lambda: place.throttle(number, rate), lambda: place.unimpair(number),
        )  # fmt: skip

    @property
    def _network(self) -> Namespaces:
        assert isinstance(self._cluster.place, Namespaces)
        return self._cluster.place

    async def _cable(
        self,
        strike: Strike,
        node: NodeProcess,
        what: object,
        cut: Callable[[], None],
        mend: Callable[[], None],
        more: str = "",
    ) -> bool:
        if not self._take(what):
            return False
        self._tell(strike, node, more)
        await asyncio.to_thread(cut)
        await asyncio.sleep(strike.lasts_seconds)
        await asyncio.to_thread(mend)
        self._busy.discard(what)
        return True

    # --- clients

    async def _leave(self, strike: Strike, _: NodeProcess) -> bool:
        self.note("a client is killed")
        del strike
        return await self._watch.kill_a_client()
