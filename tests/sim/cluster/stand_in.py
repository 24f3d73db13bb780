"""STAND-IN until the real router and sessions are there."""
from __future__ import annotations
from collections.abc import Generator
from random import Random
from typing import Any
from postroom.client.sender import DeadlineExceeded
from postroom.errors import CommitUnknown, Unavailable
from postroom.ranges.replica import Call, NotLeaseholder
from postroom.ranges.requests import CommitTransaction
from tests.sim.clock import EPOCH_MILLISECONDS
from tests.sim.sender import Killed, Pause

OBJECTS: dict[bytes, Any] = {}
COUNT = [0]
def put(what):
    COUNT[0] += 1
    token = b"%d" % COUNT[0]
    OBJECTS[token] = what
    return token

class SCall(Call):
    __slots__ = ("end", "number", "node")
    def __init__(self, node, end, number, request):
        super().__init__(request)
        self.node = node
        self.end, self.number = end, number
    def complete(self, result, error):
        if not self.cancelled:
            self.end.send(put((self.number, result, error, self.node.clock.reading())))

class StandInSession:
    def __init__(self, machine, end):
        self.machine, self.end = machine, end
        self.node = machine.node
        self.calls = {}
    def receive(self, data):
        number, request, reading = OBJECTS.pop(data)
        self.node.clock.pass_over(reading)
        if request is None:
            call = self.calls.get(number)
            if call is not None:
                self.node.cancel(call)
            return
        call = self.calls[number] = SCall(self.node, self.end, number, request)
        self.node.submit(call)
    def close(self):
        for call in self.calls.values():
            self.node.cancel(call)

class Answer:
    __slots__ = ("client", "done", "error", "request", "result", "task", "sent", "number", "began")
    def __init__(self, client, request):
        self.client, self.request = client, request
        self.done = False
        self.result = self.error = self.task = None
        self.sent = False
    def complete(self, result, error):
        if self.done: return
        self.done, self.result, self.error = True, result, error
        self.client.answered(self)
    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.result

class StandInSender:
    def __init__(self, cluster, name, randomness):
        self.cluster, self.name, self.random = cluster, name, randomness
        self.is_dead = False
        self.target = 0
        self.heard, self.heard_at = EPOCH_MILLISECONDS << 16, 0.0
        self.end = None
        self.numbers = 0
        self.waiting = {}
    def send(self, request, timeout_seconds=None):
        if self.is_dead: raise Killed
        answer = Answer(self, request)
        self.numbers += 1
        answer.number = self.numbers
        answer.began = self.cluster.agenda.now
        self.waiting[answer.number] = answer
        self.cluster.witness.sent(request)
        self.transmit(answer)
        if timeout_seconds is not None:
            self.cluster.agenda.after(timeout_seconds, lambda: self.expire(answer))
        return answer
    def expire(self, answer):
        if not answer.done:
            self.waiting.pop(answer.number, None)
            if self.end and self.end.is_open: self.end.send(put((answer.number, None, 0)))
            answer.complete(None, DeadlineExceeded())
    def transmit(self, answer):
        if self.is_dead or answer.number not in self.waiting: return
        if self.cluster.agenda.now - answer.began > 3.0:
            self.waiting.pop(answer.number)
            unknown = answer.sent and isinstance(answer.request, CommitTransaction)
            answer.complete(None, CommitUnknown("x") if unknown else Unavailable("x", 0.05))
            return
        if self.end is None or not self.end.is_open:
            machine = self.cluster.machines[self.target]
            mine, theirs = self.cluster.network.open_stream(self.name, machine.name)
            self.end = mine
            mine.on_bytes = self.received
            mine.on_broken = lambda: self.broken(mine)
            machine.accept(theirs)
        self.end.send(put((answer.number, answer.request, self.reading())))
    def broken(self, end):
        if end is self.end:
            self.target = (self.target + 1) % len(self.cluster.machines)
            self.again_all(0.02, sent=True)
    def again_all(self, delay, sent):
        end, self.end = self.end, None
        if end is not None and end.is_open: end.close()
        for answer in list(self.waiting.values()):
            answer.sent = answer.sent or sent
            self.cluster.agenda.after(delay, lambda a=answer: self.transmit(a))
    def received(self, data):
        if self.is_dead: return
        number, result, error, reading = OBJECTS.pop(data)
        if reading > self.reading(): self.heard, self.heard_at = reading, self.cluster.agenda.now
        answer = self.waiting.get(number)
        if answer is None: return
        if isinstance(error, NotLeaseholder):
            index = self.cluster.index_of(error.leader)
            self.target = (self.target + 1) % len(self.cluster.machines) if index is None else index
            self.again_all(0.01, sent=True)
            return
        if isinstance(error, CommitUnknown) or (isinstance(error, Unavailable) and isinstance(answer.request, CommitTransaction) and answer.sent):
            answer.sent = True
            self.cluster.agenda.after(0.02, lambda: self.transmit(answer))
            return
        self.waiting.pop(number)
        answer.complete(result, error)
    def answered(self, answer):
        self.cluster.note("answer", self.name, answer.result if answer.error is None else type(answer.error).__name__)
        if not self.is_dead and not isinstance(answer.error, DeadlineExceeded):
            self.cluster.witness.answered(answer.request, answer.result, answer.error)
        self.cluster.resume(answer)
    def sleep(self, seconds):
        if self.is_dead: raise Killed
        pause = Pause()
        self.cluster.agenda.after(seconds, lambda: self.cluster.resume(pause))
        return pause
    def now(self):
        for m in self.cluster.machines:
            if m.node is not None and m.node.replica.serves:
                t = m.node.clock.now()
                self.cluster.witness.handed_out(t)
                return t
        raise Unavailable("nobody", 0.01)
    def reading(self):
        return self.heard + (int((self.cluster.agenda.now - self.heard_at) * 1000) << 16)
    def monotonic(self):
        return self.cluster.agenda.now
    def die(self):
        self.is_dead = True
        if self.end is not None: self.end.close()
