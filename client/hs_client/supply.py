"""Where a run's rows come from: all of the plan, or what is leased to it while it lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import anyio

from hs_client.plan import Judged
from hs_client.prepare import Ask, Prepared
from hs_client.progress import Snapshot

__all__ = ["Everything", "Running", "Supply"]


class Running(Protocol):
    """What a supply may ask of the run that it feeds."""

    @property
    def interrupted(self) -> bool:
        """It ends, and sends nothing more."""
        ...

    @property
    def idle(self) -> bool:
        """It could send more than it has."""
        ...

    def snapshot(self) -> Snapshot:
        """As it stands."""
        ...

    def unsent(self) -> Counter[int]:
        """Row numbers of samples that wait to be sent for the first time, with how many samples each."""
        ...

    def withdraw(self, numbers: Collection[int]) -> None:
        """Forget all unsent samples of these rows."""
        ...

    async def look_around(self) -> None:
        """Know what other clients have got done by now.

        Raises:
            DestinationBroken: that cannot be known for too long.
        """
        ...

    async def interrupt(self) -> None:
        """Send nothing more, store what is in flight, end."""
        ...


class Supply(Protocol):
    """Gives a run its rows, and is told how far they are."""

    async def next(self, run: Running, /) -> Iterator[Judged] | None:
        """The next rows, in order; waits for them where none are there yet. None: there will be none.

        Raises:
            HsError: the run cannot go on.
        """
        ...

    def took(self, samples: Sequence[Prepared | Ask], rejected: Sequence[Judged], /) -> None:
        """These were read; each of them ends once, which the tally is told."""
        ...

    def through(self) -> None:
        """The rows that `next` gave last were all read."""
        ...

    async def serve(self, run: Running, /) -> None:
        """A task for as long as the run lasts.

        Raises:
            HsError: the run cannot go on.
        """
        ...


class Everything:
    """All rows of a plan, at once."""

    def __init__(self, rows: Iterator[Judged]) -> None:
        self._rows: Iterator[Judged] | None = rows

    async def next(self, _: Running, /) -> Iterator[Judged] | None:
        """All rows, the first time."""
        rows, self._rows = self._rows, None
        return rows

    def took(self, *_: object) -> None:
        """Nobody wants to know."""

    def through(self) -> None:
        """Nobody wants to know."""

    async def serve(self, _: Running, /) -> None:
        """Nothing is to be done."""
        await anyio.sleep_forever()
