"""A client that brings leased rows to an end: gives its run the rows, and tells the holder how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import anyio

from hs_client.errors import LeasesBroken
from hs_client.leases.channel import Channel
from hs_client.leases.feed import Feed
from hs_client.leases.protocol import Finish, Hello, HolderMessage, Lease, Shrink, Shrunk, State, Want
from hs_client.plan import Fate, Judged, Plan
from hs_client.prepare import Ask, Prepared
from hs_client.progress import Rates
from hs_client.row_reader import RowReader
from hs_client.supply import Running
from hs_client.tally import End, Tally

__all__ = ["Tenant"]

_PIECE_ROWS = 32
_TICK_S = 0.1
_TICKS_TO_TELL = 5
_TICKS_TO_STATE = 10


class Tenant:
    """The supply of a leased client. The tally, which must be empty, counts what was leased.

    Where the server answers rows several times, rows that were not read yet count as one sample each.

    Args:
        channel: to the holder.
        hello: what to say first.
        plan: of all rows; `numbered`.
        tally: of the run.
        low: with fewer unread rows it wants more.
        text: the run as it stands, in a line.
        say: prints a line for the user.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        hello: Hello,
        plan: Plan,
        tally: Tally,
        low: int,
        text: Callable[[], str],
        say: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._hello = hello
        self._reader = RowReader(plan)
        self._tally = tally
        self._low = low
        self._text = text
        self._say = say
        self._feed = Feed()
        self._rates = Rates()
        self._wanted = self._wanted_idle = False
        self._finished = False
        self._look = False
        self._last = -1
        self._news = anyio.Event()
        tally.on_end = self._end

    # -- what the run asks for and says

    async def next(self, run: Running) -> Iterator[Judged] | None:
        """The next leased rows; None once no lease will come any more and all that was leased is taken up."""
        while True:
            if self._look and self._feed.unread:
                # Others may have had these rows before: what they have got done must be known before one is sent.
                self._look = False
                await run.look_around()
            piece = self._feed.next(lambda start, stop: self._reader.reach(start, stop, _PIECE_ROWS))
            if piece is not None:
                fates = self._reader.fates(*piece)
                self._tally.earlier += fates[Fate.DONE]
                self._tally.identical += fates[Fate.IDENTICAL]
                self._last = -1
                return self._reader.between(*piece)
            if self._finished:
                return None
            self._news = anyio.Event()
            await self._news.wait()

    def took(self, samples: Sequence[Prepared | Ask], rejected: Sequence[Judged]) -> None:
        """These samples of the piece were read."""
        numbers = sorted([*(sample.number for sample in samples), *(judged.number for judged in rejected)])
        # Each of its rows was counted as one sample.
        self._tally.total += len(numbers) - len({number for number in numbers if number > self._last})
        self._last = max(self._last, *numbers)
        self._feed.took(numbers)

    def through(self) -> None:
        """All samples of the piece were read."""
        self._feed.through()

    def _end(self, number: int, how: End) -> None:
        self._feed.end(number, how)

    # -- what the holder says and is told

    async def serve(self, run: Running) -> None:
        """Talk to the holder for as long as the run lasts; its death interrupts the run.

        Raises:
            LeasesBroken: what it says is not understood.
        """
        self._channel.say(self._hello)
        error: LeasesBroken | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._channel.serve)
            group.start_soon(self._tell, run)
            try:
                async for message in self._channel.messages():
                    self._heard(run, message)
            except LeasesBroken as caught:
                error = caught
            else:
                await self._holder_gone(run)
            group.cancel_scope.cancel()
        if error is not None:
            raise error

    async def _holder_gone(self, run: Running) -> None:
        if self._finished:
            await anyio.sleep_forever()
        if not run.interrupted:
            self._say(
                "interrupted: nobody holds the leases any more; nothing more is sent, what is in flight is stored"
            )
            await run.interrupt()

    def _heard(self, run: Running, message: HolderMessage) -> None:
        match message:
            case Lease():
                self._take(message)
            case Shrink():
                self._give_back(run, message.nodes)
            case Finish():
                self._finished = True
        self._news.set()

    def _take(self, lease: Lease) -> None:
        if lease.stop > self._hello.rows:
            raise LeasesBroken(reason=f"a lease of rows to {lease.stop}, and there are {self._hello.rows}")
        try:
            self._feed.lease(lease.start, lease.stop)
        except ValueError as error:
            raise LeasesBroken(reason=error) from None
        self._tally.total += self._reader.to_read(lease.start, lease.stop)
        self._look, self._wanted, self._wanted_idle = True, False, False

    def _give_back(self, run: Running, nodes: int) -> None:
        given = self._feed.give_back(nodes, {} if run.interrupted else run.unsent())
        if given.withdrawn:
            run.withdraw(set(given.withdrawn))
        self._tally.total -= sum(self._reader.to_read(*each) for each in given.unread) + given.samples
        self._channel.say(Shrunk(ranges=given.ranges))

    async def _tell(self, run: Running) -> None:
        tick = 0
        while True:
            if not self._channel.full:
                if not tick % _TICKS_TO_TELL or self._feed.quiet:
                    self.tell_ended()
                self._want(run)
                if not tick % _TICKS_TO_STATE:
                    self._channel.say(self._state(run))
            tick += 1
            await anyio.sleep(_TICK_S)

    def tell_ended(self) -> None:
        """Say which rows have ended."""
        for ended in self._feed.ended():
            self._channel.say(ended)

    def _want(self, run: Running) -> None:
        if self._finished or run.interrupted or self._feed.unread >= self._low:
            return
        idle = run.idle and not self._feed.unread
        if not self._wanted or (idle and not self._wanted_idle):
            self._wanted, self._wanted_idle = True, idle
            self._channel.say(Want(idle=idle))

    def _state(self, run: Running) -> State:
        t, now = self._tally, run.snapshot()
        self._rates.note(time.monotonic(), samples=t.total - t.left, tokens=t.tokens)
        return State(
            done=t.done,
            failed=t.failed,
            rejected=t.rejected,
            elsewhere=t.elsewhere,
            adopted=t.adopted,
            left=t.left,
            tokens=t.tokens,
            tokens_per_s=round(self._rates.tokens_per_s, 3),
            limiting=now.limiting,
            waiting=now.waiting,
            used_bytes=now.used_bytes,
            limit_bytes=now.limit_bytes,
            in_flight=now.in_flight + now.generating,
            text=self._text(),
        )
