"""One scratch folder of a run and the mover behind it: credit, the parts that come, and whether anything moves."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread

from hs_client.admission import ROOM
from hs_client.attempt import Attempt, Phase, Verdict
from hs_client.correlate import Correlator
from hs_client.credits import CreditKeeper
from hs_client.errors import MoverElsewhere
from hs_client.limiter import Party
from hs_client.preflight import Place
from hs_client.scan import Scanner
from hs_client.settings import RunSettings
from hs_client.watch import StorageWatch
from hs_formats.control import MoverState, now_s
from hs_formats.errors import StorageError

__all__ = ["Storage"]


class Storage:
    """What the requests of one run to the servers of one scratch share.

    Args:
        settings: of the run.
        place: scratch, mover and dataset.
        run: its id, registered in this scratch.
        settle: told how an attempt ended.
        status: the run as it stands, in a line, for `hs-client status`.

    Raises:
        OSError: scratch has no room for the client's record.
    """

    def __init__(
        self,
        settings: RunSettings,
        place: Place,
        *,
        run: str,
        settle: Callable[[Attempt, Verdict], None],
        status: Callable[[], str],
    ) -> None:
        scratch = place.control.scratch
        self.place = place
        self.correlator = Correlator(
            Scanner(place.control, place.paths, {run}), part_timeout_s=settings.part_timeout_s, settle=settle
        )
        self.keeper = CreditKeeper(
            place.control, run, dst=place.mover.dst, outstanding=self.correlator.outstanding_bytes, status=status
        )
        self._watch = StorageWatch(
            scratch, dst=place.mover.dst, timeout_s=settings.mover_timeout_s, at_s=anyio.current_time()
        )

    @property
    def mover(self) -> MoverState | None:
        """As last read; None where it could never be read."""
        return self.keeper.mover

    @property
    def to_store(self) -> int:
        """Records that are whole and wait for the mover."""
        return self.correlator.to_store()

    @property
    def waiting(self) -> str:
        """What is waited for here; empty while all goes well."""
        return self.keeper.waiting or self.correlator.trouble or self.not_stored

    @property
    def not_stored(self) -> str:
        """Why records that are whole are not stored, although nothing waits for a grant; empty while they are."""
        return self.keeper.mover_trouble() if self.to_store else ""

    def party(self, reason: str) -> Party:
        """Who keeps a record waiting for `reason`: a mover that lags behind, or a scratch that is too small."""
        if reason != ROOM:
            return "mover" if reason.startswith("the mover") else "scratch"
        backlog_bytes = self.mover.backlog_bytes if self.mover is not None else 0
        return "mover" if backlog_bytes >= self.correlator.outstanding_bytes() else "scratch"

    def granted(self, at_s: float) -> None:
        """A record was let in."""
        self._watch.moved(at_s)

    async def beat(self) -> None:
        """The heartbeat of this run here.

        Raises:
            OSError: scratch is gone.
        """
        await self.keeper.publish()
        await anyio.to_thread.run_sync(self.keeper.read_mover)

    def check(self, at_s: float, *, left: int) -> None:
        """Give up when nothing moves.

        Raises:
            MoverElsewhere: the mover here stores to another destination now, and has done so for too long.
            StorageError: for too long.
        """
        self._watch.moved(self.correlator.last_line_s)
        reason = self.waiting
        waiting = bool(reason or self.to_store)
        try:
            self._watch.check(at_s, mover=self.mover, reason=reason, waiting=waiting, left=left)
        except StorageError:
            now = self.keeper.elsewhere
            if now and self.mover is not None and self.mover.alive(now_s()):
                then = self.place.mover.dst
                raise MoverElsewhere(scratch=self.place.control.scratch, now=now, then=then, left=left) from None
            raise

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return self.correlator.count(Phase.FLYING)

    @property
    def unfinished(self) -> int:
        """Requests without an answer or without all of their parts stored."""
        return self.in_flight + self.correlator.count(Phase.ANSWERED)

    async def close(self) -> None:
        """Withdraw what is promised, if nothing more will come."""
        nothing_to_come = not self.correlator.outstanding_bytes()
        await anyio.to_thread.run_sync(lambda: self.keeper.close(remove=nothing_to_come))
