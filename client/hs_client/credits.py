"""Keeps this client's promise: leases credit under the lock, publishes what may come, returns what it does not use."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import asdict, replace

import anyio
import anyio.to_thread

from hs_client.admission import (
    CreditView,
    Decision,
    ceiling,
    decide,
    mover_trouble,
    needed_before,
    others_promised,
    someone_waits,
)
from hs_client.claim import hold_claim, lock_holder
from hs_formats.control import ClientState, ControlFolder, MoverState, now_s, same_folder, used_bytes
from hs_formats.errors import FormatError
from hs_formats.fixed_record import FixedRecord

__all__ = ["CreditKeeper"]

_BLOCKS_OF_LIMIT = 32
_NEEDS_A_BLOCK = 16
_MIN_BLOCK_BYTES = 1 << 20
_MAX_STATUS = 600
"""Characters: the record has a fixed size."""


class CreditKeeper:
    """Credit of one run.

    Published is always at least `outstanding()` plus the unspent lease. It is raised only under ``credit.lock``;
    lowering it early harms nobody. One task calls `take`; `publish` may come from another.

    Args:
        control: of scratch.
        run: this run's id.
        dst: the destination of its dataset; empty: whatever the mover's is.
        outstanding: bytes that the requests sent so far may still write.
        status: the run as it stands, in a line.

    Raises:
        OSError: scratch has no room for the record.
    """

    def __init__(
        self,
        control: ControlFolder,
        run: str,
        *,
        dst: str = "",
        outstanding: Callable[[], int],
        status: Callable[[], str] = str,
    ) -> None:
        self._control = control
        self._run = run
        self._dst = dst
        self._outstanding = outstanding
        self._status = status
        self._shown = ""
        self._lease_bytes = 0
        self._spent_since_publish = False
        self._lock = anyio.Lock()
        self._record: FixedRecord | None = control.client_record(run)
        self._waiting_since_s = 0.0
        self._need_bytes = 0
        self.waiting = ""
        self.mover: MoverState | None = None
        self.elsewhere = ""
        self._record.write(asdict(self._state(0)))
        self._claim = hold_claim(control, run)

    @property
    def lease_bytes(self) -> int:
        """Credit that is published and not yet granted to a request."""
        return self._lease_bytes

    async def take(self, need_bytes: int) -> Decision:
        """Try to get `need_bytes`. After ``grant`` the caller must count them as outstanding before its next await.

        Own parts must have been listed just before. After any other verdict the lease has been given back. Who has been
        told to wait holds a place in the queue of all clients until `stop_waiting` or a grant.
        """
        mover = self.mover
        if need_bytes <= self._lease_bytes and mover is not None and mover.alive(now_s()) and mover.state == "moving":
            self._spend(need_bytes)
            return Decision("grant")
        async with self._lock:
            own = self._outstanding()
            decision = await anyio.to_thread.run_sync(self._lease, need_bytes, own)
            self._lease_bytes = decision.lease_bytes
            if decision.verdict == "grant":
                self._spend(need_bytes)
        return decision

    def _spend(self, need_bytes: int) -> None:
        self._lease_bytes -= need_bytes
        self._spent_since_publish = True
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Nothing is waited for any more; others learn it with the next heartbeat."""
        self.waiting = ""
        self._need_bytes = 0
        self._waiting_since_s = 0.0

    def _lease(self, need_bytes: int, own_bytes: int) -> Decision:
        try:
            return self._lease_locked(need_bytes, own_bytes)
        except TimeoutError:
            holder = lock_holder(self._control.credit_lock)
            who = "another process" if holder is None else f"process {holder}"
            self.waiting = f"the lock that clients share, which {who} holds: is it stopped?"
            return Decision("wait", reason=self.waiting)

    def _lease_locked(self, need_bytes: int, own_bytes: int) -> Decision:
        with self._control.credit():
            clients = self._control.read_clients()
            at_s = now_s()
            mover = self.read_mover()
            limit_bytes = 0 if mover is None else mover.limit_bytes
            since_s = self._waiting_since_s or at_s
            found = os.statvfs(self._control.scratch)  # last: what left the promises is in here
            view = CreditView(
                at_s=at_s,
                mover=mover,
                used_bytes=used_bytes(found),
                own_bytes=own_bytes,
                others_bytes=others_promised(clients, self._run, at_s),
                before_bytes=needed_before(clients, self._run, since_s, at_s=at_s, limit_bytes=limit_bytes),
                ceiling_bytes=ceiling(mover, found.f_blocks * found.f_frsize),
            )
            block = 0
            if mover is not None and not someone_waits(clients, self._run, at_s):
                block = max(_MIN_BLOCK_BYTES, min(_NEEDS_A_BLOCK * need_bytes, mover.limit_bytes // _BLOCKS_OF_LIMIT))
            decision = decide(view, need_bytes, block_bytes=block)
            if decision.verdict == "wait":
                self.waiting, self._need_bytes, self._waiting_since_s = decision.reason, need_bytes, since_s
            else:
                self.stop_waiting()
            self._write(own_bytes + decision.lease_bytes)
        return decision

    def read_mover(self) -> MoverState | None:
        """The mover's state, also kept as `mover`; blocking.

        One that stores to another destination, which is `elsewhere` then, holds: it leaves our parts alone.
        """
        with contextlib.suppress(FormatError, OSError):
            mover = self._control.read_mover()
            there = mover is not None and bool(self._dst) and not same_folder(mover.dst, self._dst)
            self.elsewhere = mover.dst if mover is not None and there else ""
            if mover is not None and there:
                reason = f"it stores to {mover.dst} now, and this run's dataset lies in {self._dst}"
                # What it gets done for others is no progress here.
                mover = replace(mover, state="holding", reason=reason, last_progress_s=0.0)
            self.mover = mover
        return self.mover

    def mover_trouble(self) -> str:
        """Why nothing is stored, by the mover's state as last read; empty while it moves."""
        return mover_trouble(self.mover, now_s()) if self.mover is not None else ""

    async def publish(self) -> None:
        """The heartbeat: say what may still come. A lease that nobody spent since the last one is given back.

        Raises:
            OSError: scratch was removed or replaced, so that nobody sees the promise nor knows the run any more.
        """
        async with self._lock:
            if not self._spent_since_publish:
                self._lease_bytes = 0
            self._spent_since_publish = False
            self._shown = self._status()[:_MAX_STATUS]
            await anyio.to_thread.run_sync(self._beat, self._outstanding() + self._lease_bytes)

    def _beat(self, promised_bytes: int) -> None:
        if self._record is None:
            return
        path = self._record.path
        if not os.path.samestat(os.stat(path), os.fstat(self._claim)):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", str(path))
        self._control.touch_run(self._run)
        self._write(promised_bytes)

    def _state(self, promised_bytes: int) -> ClientState:
        return ClientState(
            run=self._run,
            pid=os.getpid(),
            heartbeat_s=now_s(),
            promised_bytes=promised_bytes,
            waiting=self.waiting,
            need_bytes=self._need_bytes,
            waiting_since_s=self._waiting_since_s,
            progress=self._shown,
        )

    def _write(self, promised_bytes: int) -> None:
        if self._record is not None:
            self._record.write(asdict(self._state(promised_bytes)))

    def close(self, *, remove: bool) -> None:
        """Stop publishing. `remove` when nothing more will come of this run's requests; else the promise ages out."""
        if self._record is not None:
            self._record.close()
            self._record = None
            os.close(self._claim)
        if remove:
            self._control.remove_client(self._run)
