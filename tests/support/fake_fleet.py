"""A cluster without Ray, nodes, servers or time: what the driver does is seen in steps, one for each of its waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hs_client.cluster.fleet import Lost, RayNode
from hs_client.cluster.job import Closed, Event, Finished, Heard, NodeJob, Said
from hs_client.leases.protocol import (
    Ended,
    Finish,
    Hello,
    HolderMessage,
    Lease,
    Over,
    Shrink,
    Shrunk,
    State,
    Want,
)

__all__ = ["FakeActor", "FakeFleet"]


@dataclass
class FakeActor:
    """An actor whose client brings `speed` rows a step to an end.

    `fails_after`: rows after which it ends with `code` and `error`, or is lost where `code` is None.
    """

    node: RayNode
    job: NodeJob
    speed: int = 4
    fails_after: int | None = None
    code: int | None = None
    error: str = "the end"
    inputs_hash: str = "h"
    silent: bool = False
    hangs: bool = False
    rows: int = 0
    held: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    told: list[HolderMessage] = field(default_factory=list)
    interrupts: int = 0
    hello: bool = False
    finished: bool = False
    wants: bool = False
    over: bool = False

    def step(self) -> list[Event] | Lost:
        """What it says next."""
        if self.job.tidy:
            return [Closed()]
        if self.hangs:
            return []
        events: list[Event] = []
        if not self.hello:
            self.hello = True
            events.append(Said("logs in /state"))
            if self.fails_after == 0:
                return self._fail(events)
            if self.interrupts:
                return [*events, *self._leave(130)]
            hello = Hello(run=f"{self.job.number:08x}", rows=self.rows, left=self.rows, inputs_hash=self.inputs_hash)
            return [*events, Heard(hello), Heard(Want(idle=True))]
        if self.interrupts:
            return [*events, *self._leave(130)]
        for _ in range(min(self.speed, len(self.held))):
            row = self.held.pop(0)
            self.ended.append(row)
            events.append(Heard(Ended(start=row, stop=row + 1, done=1)))
            if self.fails_after is not None and len(self.ended) >= self.fails_after:
                return self._fail(events)
        events.append(Heard(State(done=len(self.ended), left=len(self.held))))
        if self.finished and not self.held:
            return [*events, *self._leave(0)]
        if not self.held and not self.wants:
            self.wants = True
            events.append(Heard(Want(idle=True)))
        return events

    def tell(self, message: HolderMessage) -> list[Event]:
        """It is told something; what it answers at once."""
        self.told.append(message)
        match message:
            case Lease(start=start, stop=stop):
                self.held += range(start, stop)
                self.wants = False
            case Finish():
                self.finished = True
            case Shrink(nodes=nodes):
                sent = min(self.speed, len(self.held))
                keep = sent + (len(self.held) - sent) // (nodes + 1)
                given, self.held = self.held[keep:], self.held[:keep]
                return [Heard(Shrunk(ranges=tuple((row, row + 1) for row in sorted(given))))]
        return []

    def _fail(self, events: list[Event]) -> list[Event] | Lost:
        if self.code is None:
            return Lost(self.error)
        return [*events, *self._leave(self.code, self.error)]

    def _leave(self, code: int, error: str = "") -> list[Event]:
        self.over = True
        words: list[Event] = [] if self.silent else [Heard(Over(exit_code=code, error=error))]
        return [*words, Finished(code, error, self.silent), Closed()]


class FakeFleet:
    """A `Fleet`.

    Args:
        nodes: names of the nodes that live.
        rows: of the prompts.
        make: changes an actor that begins; the how-manieth of its node it is comes with it.
    """

    need = "1 hs_node"

    def __init__(
        self, nodes: Sequence[str], *, rows: int, make: Callable[[FakeActor, int], object] = lambda actor, nth: None
    ) -> None:
        self.living = [RayNode(name, name) for name in nodes]
        self.rows = rows
        self.make = make
        self.actors: dict[int, FakeActor] = {}
        self.all: list[FakeActor] = []
        self.pending: set[str] = set()
        self.on_wait: Callable[[int], object] = lambda step: None
        self.steps = 0
        self.now_s = 0.0
        self._queued: dict[int, list[Event]] = {}

    def nodes(self) -> list[RayNode]:
        return list(self.living)

    def others(self) -> list[str]:
        return ["head (4 CPU)"]

    def begin(self, node: RayNode, job: NodeJob) -> int:
        actor = FakeActor(node, job, rows=self.rows)
        self.make(actor, sum(each.node == node and not each.job.tidy for each in self.all))
        number = len(self.all)
        self.all.append(actor)
        self.actors[number] = actor
        return number

    def wait(self, timeout_s: float) -> list[tuple[int, list[Event] | Lost]]:
        self.steps += 1
        self.now_s += 1.0
        assert self.steps < 5000, "the driver does not come to an end"
        self.on_wait(self.steps)
        found: list[tuple[int, list[Event] | Lost]] = []
        for number, actor in list(self.actors.items()):
            if actor.node.id in self.pending:
                continue
            queued = self._queued.pop(number, [])
            said: list[Event] | Lost = [] if actor.over else actor.step()
            if isinstance(said, Lost):
                del self.actors[number]
                found.append((number, said))
            else:
                found.append((number, [*queued, *said]))
        return found

    def give(self, actor: int, messages: Sequence[HolderMessage]) -> None:
        if actor in self.actors:
            for message in messages:
                self._queued.setdefault(actor, []).extend(self.actors[actor].tell(message))

    def interrupt(self, actor: int) -> None:
        if actor in self.actors:
            self.actors[actor].interrupts += 1

    def drop(self, actor: int) -> None:
        self.actors.pop(actor, None)

    def close(self) -> None:
        self.actors.clear()
