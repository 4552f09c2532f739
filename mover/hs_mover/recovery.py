"""What an earlier life left in the destination, run by run, as far as the destination lets it be done."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from hs_mover.destination import Destination
from hs_mover.recover import recover_run, sweep_unclaimed
from hs_mover.registry import Registry

__all__ = ["Recovery"]


class Recovery:
    """Cleans up and adopts, once `begin` has said for which runs; goes on where it was after a failure.

    Args:
        destination: where to.
        registry: of the runs.
        mover_id: whose temporaries are removed.
        wait: waits so many seconds, less when the mover is to stop; also called, with 0, to say that it is alive.
        stopping: whether the mover is to stop.
    """

    def __init__(
        self,
        destination: Destination,
        registry: Registry,
        mover_id: str,
        *,
        wait: Callable[[float], object],
        stopping: Callable[[], bool],
    ) -> None:
        self._destination = destination
        self._registry = registry
        self._mover_id = mover_id
        self._wait = wait
        self._stopping = stopping
        self._runs: list[str] | None = None
        self._noted: dict[str, array[int]] | None = None

    @property
    def begun(self) -> bool:
        """`begin` was called."""
        return self._runs is not None

    @property
    def done(self) -> bool:
        """Nothing is left to do; never before `begin`."""
        return self._runs is not None and not self._runs

    def begin(self) -> None:
        """Take on all runs that are registered now, unless that was done before."""
        if self._runs is None:
            self._runs = self._registry.runs()

    def forget(self) -> None:
        """What the manifests said may not be true any more."""
        self._noted = None

    def go_on(self) -> None:
        """Do what is left.

        Raises:
            SourceError: the registration of a run cannot be read.
            OSError: the destination fails.
        """
        if self._runs and self._noted is None:
            sweep_unclaimed(self._destination, self._mover_id)
            self._noted = self._registry.noted(self._runs, turn=lambda: self._wait(0))
        while self._runs and not self._stopping():
            run = self._runs[-1]
            books = self._registry.books_of(run)
            if books is not None:
                noted = (self._noted or {}).get(run, array("Q"))
                recover_run(books, run, self._mover_id, noted=noted, wait=self._wait)
            self._runs.pop()
        if not self._runs:
            self._noted = None
