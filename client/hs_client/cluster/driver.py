"""The driver: has an actor on each node, deals out the rows, replaces what is lost, and says what it came to."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hs_client.cluster.arguments import NODE
from hs_client.cluster.closing import close_run, nobody_left
from hs_client.cluster.ending import ClientEnd, total_tally
from hs_client.cluster.errors import NodesTogether, NoNodes
from hs_client.cluster.fleet import Fleet, Lost, RayNode
from hs_client.cluster.job import Closed, Event, Finished, Heard, Said
from hs_client.cluster.member import ASKED, Member
from hs_client.cluster.roster import Roster
from hs_client.cluster.settings import ClusterSettings
from hs_client.cluster.view import NodeLine, TotalLine, View
from hs_client.leases.holder import Answers, Holder
from hs_client.leases.protocol import Ended, Hello, Over, State
from hs_client.progress import Rates
from hs_client.session import INTERRUPTED
from hs_formats.errors import HsError

__all__ = ["Driver"]

_LOST_CODE = 4


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: between looks at the cluster, for a first node, for one that comes back, before it is said that an
    actor waits for what others use, and that a client is silent, for what tidies up, and for what is told to actors at
    the very end."""

    look_s: float = 2.0
    first_s: float = 60.0
    again_s: float = 60.0
    actor_s: float = 30.0
    silent_s: float = 30.0
    tidy_s: float = 300.0
    leave_s: float = 1.0
    step_s: float = 0.2


class Driver:
    """One run on many nodes.

    Args:
        settings: of it.
        fleet: the cluster.
        view: where it is shown.
        patience: how long it waits for what.
        clock: monotonic seconds.
        sleep: for so many of them.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        fleet: Fleet,
        view: View,
        *,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._view = view
        self._patience = patience or Patience()
        self._clock = clock
        self._sleep = sleep
        self._started_s = clock()
        self._holder = Holder(nodes=settings.nodes or max(1, len(fleet.nodes())))
        self._roster = Roster(settings.nodes)
        self._members: dict[int, Member] = {}
        self._ends: list[ClientEnd] = []
        self._untidy: dict[tuple[int, str], RayNode] = {}
        self._rates = Rates()
        self._looked_s = -1e9
        self._hope_s = self._started_s
        self._short = ""
        self._interrupts = 0
        self._told = 0
        self._dismissed = False

    def run(self) -> int:
        """Do it; returns the exit code.

        Raises:
            HsError: no node is left, and rows are pending.
        """
        error: HsError | None = None
        self._say_what_must_run()
        try:
            with self._signals():
                try:
                    while not self._over():
                        self._step()
                except HsError as caught:
                    error = caught
                    self._end_all()
                self._tidy()
        finally:
            self._view.close()
        return self._finish(error)

    # -- a step of the loop

    def _over(self) -> bool:
        if self._interrupts > 1:
            return True
        return not self._members and (self._holder.finished or self._interrupts > 0)

    def _step(self) -> None:
        self._listen_to_user()
        if not self._holder.finished and not self._interrupts:
            self._place()
        self._poll()
        self._say_silent()
        if self._view.due:
            self._show()

    def _poll(self) -> None:
        if not self._members:
            self._sleep(self._patience.step_s)
            return
        for actor, events in self._fleet.wait(self._patience.step_s):
            member = self._members.get(actor)
            if member is None:
                continue
            if isinstance(events, Lost):
                self._lost(member, events.reason)
                continue
            for event in events:
                self._happened(member, event)

    # -- actors come and go

    def _place(self) -> None:
        """Ask for actors as long as there are too few of them.

        Raises:
            HsError: there is no node to ask, and none will come.
        """
        now_s = self._clock()
        if now_s - self._looked_s < self._patience.look_s:
            return
        self._looked_s = now_s
        self._roster.saw(self._fleet.nodes())
        members = list(self._members.values())
        busy = {member.node.id for member in members}
        missing = self._roster.wanted - len(members)
        candidates = self._roster.candidates(busy, now_s)
        asked = candidates[: max(0, missing)]
        for node in self._apart([member.node for member in members], asked, now_s):
            self._begin(node, self._free_number(), now_s)
        self._say_short()
        for member in members:
            if member.phase == ASKED and now_s - member.asked_s > self._patience.actor_s:
                member.phase = f"waits for {self._fleet.need}, which others use"
                self._view.say(f"{member.name} {member.phase}")
        if self._members or self._roster.usable:
            self._hope_s = now_s
        elif self._holder.first is None and not self._roster.reasons:
            if now_s - self._hope_s >= self._patience.first_s:
                raise NoNodes(need=self._fleet.need, found=", ".join(self._fleet.others()) or "none")
        elif self._all_out or now_s - self._hope_s >= self._patience.again_s:
            raise nobody_left(self._roster.reasons, left=self._pending())

    def _apart(self, busy: Sequence[RayNode], asked: Sequence[RayNode], at_s: float) -> list[RayNode]:
        """Those of `asked` that can work beside `busy` and each other: nodes on one machine would stop each other's
        server, where the settings do not tell them apart. Once rows are being sent, one that cannot is left out.

        Raises:
            NodesTogether: there are such nodes from the beginning.
        """
        options = self._settings.same_everywhere
        apart: list[RayNode] = []
        for node in asked:
            if not options or not node.address or all(node.address != each.address for each in (*busy, *apart)):
                apart.append(node)
                continue
            error = NodesTogether(name=node.name, address=node.address, placeholder=NODE, options=" and ".join(options))
            if self._holder.first is None:
                raise error
            self._roster.failed(node, code=error.exit_code, reason=str(error), progress=False, at_s=at_s)
            self._view.say(f"warning: {node.name} is left out: {error}")
        return apart

    @property
    def _all_out(self) -> bool:
        """Those that live are left out: no need to wait."""
        return bool(self._fleet.nodes())

    def _free_number(self) -> int:
        taken = {member.number for member in self._members.values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _begin(self, node: RayNode, number: int, at_s: float, *, tidy: bool = False) -> Member:
        actor = self._fleet.begin(node, self._settings.job(number, tidy=tidy))
        member = Member(number, node, actor, at_s)
        member.end.node = member.name
        self._members[actor] = member
        return member

    def _say_short(self) -> None:
        """Say that there are none, or fewer than asked for, whenever that changes."""
        living = self._roster.living
        wanted = self._settings.nodes
        short = ""
        if not living:
            short = f"no node has {self._fleet.need} now: waits for one, a minute at most"
        elif wanted is not None and len(living) < wanted:
            names = ", ".join(sorted(node.name for node in living))
            short = (
                f"{len(living)} of {wanted} nodes have {self._fleet.need}: {names}; goes on with these, and with others"
                " as they come"
            )
        if short and short != self._short:
            self._view.say(f"warning: {short}")
        self._short = short

    def _say_what_must_run(self) -> None:
        """Say what nobody is going to start."""
        given = {"server": self._settings.server, "mover": self._settings.mover}
        for what in (name for name, arguments in given.items() if arguments is None):
            self._view.say(f"without --node-{what}, each node's {what} must be running")

    def _say_silent(self) -> None:
        """Say whose client, which sends, has not said a word for long: it hangs, or its actor or its machine does."""
        for member in self._members.values():
            silent_s = self._clock() - member.heard_s
            if not member.phase and silent_s > self._patience.silent_s:
                member.phase = "says nothing"
                self._view.say(
                    f"warning: {member.name} has said nothing for {silent_s:.0f} s, and the {self._held(member)} rows"
                    " that it holds wait for it: if it does not come back, kill its actor or its client there, and they"
                    " go to others"
                )

    def _lost(self, member: Member, reason: str) -> None:
        """Its actor is gone."""
        del self._members[member.actor]
        self._untidy[member.number, member.node.name] = member.node
        if member.over:
            return
        member.end.error = reason
        self._ended(member, None, f"its actor is lost ({reason})")

    def _ended(self, member: Member, code: int | None, reason: str) -> None:
        """The client, or the actor before there was one, has ended: its rows go to others."""
        member.over, member.phase = True, "stops"
        member.end.exit_code = code
        self._ends.append(member.end)
        held = self._held(member)
        self._tell(self._holder.lost(member.name))
        if code in (0, 1) and self._holder.finished:
            return
        if self._interrupts or self._holder.finished:
            if reason and code != INTERRUPTED:
                self._view.say(f"warning: {member.name}: {reason}")
            return
        shown = reason or f"it has ended with exit code {code}"
        out = self._roster.failed(
            member.node,
            code=_LOST_CODE if code is None else code,
            reason=shown,
            progress=member.progress,
            at_s=self._clock(),
        )
        rows = f"; its {held} rows go to others" if held else ""
        what = "is left out" if out else "is asked again soon"
        self._view.say(f"warning: {member.name} {what}{rows}: {shown}")

    # -- what actors say

    def _happened(self, member: Member, event: Event) -> None:
        if not member.begun:
            member.begun, member.phase = True, "starts"
        match event:
            case Said(text):
                if text.startswith("warning"):
                    self._view.say(f"warning: {member.name}: {text.removeprefix('warning').lstrip(': ')}")
                else:
                    self._view.say(f"{member.name}: {text}")
            case Heard():
                self._heard(member, event)
            case Finished(code, error, _):
                if not member.over:
                    member.end.error = error
                    self._ended(member, code, error)
            case Closed():
                self._members.pop(member.actor, None)
                self._untidy.pop((member.number, member.node.name), None)
                self._fleet.drop(member.actor)

    def _heard(self, member: Member, heard: Heard) -> None:
        message = heard.message
        if member.over:
            return
        match message:
            case State():
                member.end.state = message
                member.heard_s = self._clock()
                member.phase = ""
            case Hello():
                member.end.hello = message
                member.phase = "has its plan"
            case Ended():
                member.progress = True
                member.end.done += message.done
            case Over():
                member.end.summary = message.summary
                return  # `Finished` follows, once the client has ended
            case _:
                pass
        try:
            answers = self._holder.heard(member.name, message)
        except HsError as error:  # other prompts, or it says what it cannot say now
            member.end.error = str(error)
            self._end(member)
            self._end(member)
            self._ended(member, error.exit_code, str(error))
            return
        self._tell(answers)
        if isinstance(message, Hello):
            run = f"run {message.run}, dataset {message.dataset}"
            self._view.say(f"{member.name}: {run}, {message.done} done, {message.left} to send")
        if self._holder.finished and not self._dismissed:
            self._dismissed = True
            for other in list(self._members.values()):
                if other.end.hello is None and not other.over:
                    self._end(other)  # it has nothing to start for

    def _tell(self, answers: Answers) -> None:
        by_name = {member.name: member for member in self._members.values() if not member.over}
        for name, message in answers:
            member = by_name.get(name)
            if member is not None:
                self._fleet.give(member.actor, [message])

    def _held(self, member: Member) -> int:
        table = self._holder.table
        return 0 if table is None else table.held(member.name)

    # -- the user

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def count(_number: int, _frame: FrameType | None) -> None:
            self._interrupts += 1

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, count) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _listen_to_user(self) -> None:
        while self._told < self._interrupts:
            self._told += 1
            if self._told == 1:
                self._view.say(
                    "interrupted: nothing more is sent, what is in flight is stored, and what was started on the nodes"
                    " is stopped; again to leave at once"
                )
            self._end_all()

    def _end_all(self) -> None:
        for member in list(self._members.values()):
            self._end(member)

    def _end(self, member: Member) -> None:
        """Have it end; again, at once. An actor that Ray has not started yet is not waited for."""
        if member.begun:
            self._fleet.interrupt(member.actor)
        else:
            self._fleet.drop(member.actor)
            self._members.pop(member.actor, None)

    def _show(self) -> None:
        now_s = self._clock()
        members = sorted(self._members.values(), key=lambda member: member.number)
        states = [member.end.state for member in members if not member.over]
        tally = total_tally(self._holder.totals, self._holder.first, (), finished=self._holder.finished)
        ended = tally.total - tally.left
        self._rates.note(now_s, samples=ended, tokens=0)
        self._view.show(
            [NodeLine(member.name, member.phase, self._held(member), member.end.state) for member in members],
            TotalLine(
                ended=ended,
                total=tally.total,
                failed=tally.failed,
                rejected=tally.rejected,
                tokens_per_s=sum(state.tokens_per_s for state in states),
                left_s=self._rates.left_s(tally.left) if tally.left else None,
                nodes=sum(not member.phase for member in members),
                wanted=max(self._roster.wanted, len(members)),
            ),
        )

    # -- the end

    def _pending(self) -> int | str:
        if self._holder.first is None:
            return "all"
        return total_tally(self._holder.totals, self._holder.first, (), finished=self._holder.finished).left

    def _tidy(self) -> None:
        """See that what is under way ends, and stop what actors have left behind that were lost."""
        if self._interrupts > 1:
            self._leave()
            return
        if self._settings.server is not None or self._settings.mover is not None:
            living = {node.id for node in self._fleet.nodes()}
            numbers = {member.number for member in self._members.values()}
            for (number, _), node in list(self._untidy.items()):
                if node.id in living and number not in numbers:
                    member = self._begin(node, number, self._clock(), tidy=True)
                    member.over = True
        end_s = self._clock() + self._patience.tidy_s
        while self._members and self._interrupts < 2 and self._clock() < end_s:
            self._listen_to_user()
            self._poll()
        if self._members:
            self._leave()

    def _leave(self) -> None:
        """At once: clients are told to leave, servers and movers stay as they are."""
        self._listen_to_user()
        self._view.say(
            "warning: left at once: what was started on the nodes may run on; a repeated command takes it over"
        )
        end_s = self._clock() + self._patience.leave_s
        while self._members and self._clock() < end_s:
            self._poll()

    def _finish(self, error: HsError | None) -> int:
        for member in self._members.values():
            if not member.over:
                member.end.error = "left at once"
                self._ends.append(member.end)
        return close_run(
            self._settings,
            self._holder,
            [end for end in self._ends if end.hello is not None or end.error],
            spent_s=self._clock() - self._started_s,
            error=error,
            interrupted=bool(self._interrupts),
            say=self._view.say,
        )
