"""Admission: may a request be sent now, given what is in scratch and what was promised? Pure logic.

Every byte of a record is in exactly one place: promised, in scratch, or gone. A request is granted when the fill of
scratch, what all clients have promised and its own bytes stay within the mover's limit; and what clients need that
have waited for longer, so that a small record never overtakes a large one for ever. The facts must have been gathered
in this order, or a part can fall between them: own parts listed, then others' promises read, then the fill read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hs_formats.control import CLIENT_GRACE_S, STALE_S, ClientState, MoverState
from hs_formats.part import PART_OVERHEAD_BYTES
from hs_formats.tiling import Writers

__all__ = [
    "ROOM",
    "CreditView",
    "Decision",
    "RecordCost",
    "ceiling",
    "decide",
    "mover_trouble",
    "needed_before",
    "others_promised",
    "someone_waits",
]

ROOM = "room in scratch"
"""What a record waits for that will fit once our own parts are moved."""

_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class RecordCost:
    """What a record takes in scratch, at most.

    Args:
        bytes_per_token: of the hidden states of one token, one copy.
        copies: how often each row is written.
        ranks: how many ranks write a file for each chunk.
        chunk_tokens: prefill chunk of the server; 0 or less where prompts are not chunked.
    """

    bytes_per_token: int
    copies: int
    ranks: int
    chunk_tokens: int

    @classmethod
    def of(cls, *, writers: Writers, ranks: int, bytes_per_token: int, chunk_tokens: int) -> RecordCost:
        """From what the marker says."""
        files = 1 if writers == "first" else ranks
        return cls(bytes_per_token, ranks if writers == "all" else 1, files, chunk_tokens)

    def parts(self, n: int) -> int:
        """Bound on the part files of n tokens.

        The first chunk of a prompt takes what is left of a batch, so there is one more than the quotient says.
        """
        chunks = 1 if self.chunk_tokens <= 0 else min(n, 1 + -(-n // self.chunk_tokens))
        return min(chunks * self.ranks, n * self.ranks)

    def record(self, n: int) -> int:
        """bytes(n): all copies of all parts."""
        return self.rest(n, seen_rows=0, seen_parts=0)

    def rest(self, n: int, *, seen_rows: int, seen_parts: int) -> int:
        """What may still come of n tokens when parts of `seen_rows` rows, copies counted, have been seen."""
        rows = self.copies * n - seen_rows
        if rows <= 0:
            return 0
        parts = max(1, self.parts(n) - seen_parts)
        return rows * (self.bytes_per_token + _ID_BYTES) + parts * PART_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class CreditView:
    """The facts that a grant rests on, all in bytes.

    `own_bytes` is what this client's sent requests may still write, `others_bytes` what the other clients promised,
    `before_bytes` what those need that have waited for longer. `ceiling_bytes` is what the mover's limit could be at
    best; 0 where nobody knows.
    """

    at_s: float
    mover: MoverState | None
    used_bytes: int
    own_bytes: int
    others_bytes: int
    before_bytes: int = 0
    ceiling_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """`lease_bytes` may be spent on requests when `verdict` is ``grant``; else `reason` says what is waited for.

    ``later``: there is no room for the record just now, and none that our own parts will make; ``never``: it is larger
    than the limit can be.
    """

    verdict: Literal["grant", "wait", "later", "never"]
    lease_bytes: int = 0
    reason: str = ""


def others_promised(clients: Iterable[ClientState], run: str, at_s: float) -> int:
    """Bytes promised by all other clients that are alive, or died so recently that their requests may still write."""
    return sum(
        client.promised_bytes
        for client in clients
        if client.run != run and at_s - client.heartbeat_s < STALE_S + CLIENT_GRACE_S
    )


def someone_waits(clients: Iterable[ClientState], run: str, at_s: float) -> bool:
    """Another living client waits for credit, so nobody should take more than a request needs."""
    return any(client.run != run and client.waiting and at_s - client.heartbeat_s < STALE_S for client in clients)


def needed_before(clients: Iterable[ClientState], run: str, since_s: float, *, at_s: float, limit_bytes: int) -> int:
    """Bytes that other living clients need who wait since before `since_s`, and whose records the limit can take."""
    return sum(
        client.need_bytes
        for client in clients
        if client.run != run
        and client.waiting
        and client.need_bytes <= limit_bytes
        and (client.waiting_since_s, client.run) < (since_s, run)
        and at_s - client.heartbeat_s < STALE_S
    )


def ceiling(mover: MoverState | None, total_bytes: int) -> int:
    """What the mover's limit could be at best on a scratch of `total_bytes`, with nothing else bounding it."""
    if mover is None:
        return 0
    return max(mover.limit_bytes, int(max(0, total_bytes - mover.reserve_bytes) * mover.high))


def mover_trouble(mover: MoverState | None, at_s: float) -> str:
    """Why the mover stores nothing now, as something that is waited for; empty while it moves."""
    if mover is None:
        return "the mover: it has never run here"
    if not mover.alive(at_s):
        how = "it stops" if mover.state == "stopping" else f"silent for {at_s - mover.heartbeat_s:.0f} s"
        return f"the mover: {how}"
    return "" if mover.state == "moving" else f"the mover, which holds: {mover.reason or 'no reason given'}"


def decide(view: CreditView, need_bytes: int, *, block_bytes: int = 0) -> Decision:
    """Whether a request that may write `need_bytes` can be sent, and how much may be leased along with it.

    At most `block_bytes` are leased, or the need where that is more.
    """
    mover = view.mover
    trouble = mover_trouble(mover, view.at_s)
    if mover is None or not mover.alive(view.at_s):
        return Decision("wait", reason=trouble)
    if need_bytes > mover.limit_bytes:
        never = need_bytes > max(mover.limit_bytes, view.ceiling_bytes)
        limit_bytes = max(mover.limit_bytes, view.ceiling_bytes) if never else mover.limit_bytes
        reason = f"its record needs {need_bytes:,} bytes of scratch, more than the limit of {limit_bytes:,}"
        return Decision("never" if never else "later", reason=reason)
    if trouble:
        return Decision("wait", reason=trouble)
    room = mover.limit_bytes - view.used_bytes - view.own_bytes - view.others_bytes - view.before_bytes
    if need_bytes > room:
        ours_bytes = view.own_bytes + view.others_bytes + view.before_bytes
        if not ours_bytes and not mover.backlog_parts:
            # Nothing that will go away fills scratch: waiting here would be for ever.
            reason = (
                f"its record needs {need_bytes:,} bytes of scratch, and files of others take {view.used_bytes:,} of the"
                f" limit of {mover.limit_bytes:,}"
            )
            return Decision("later", reason=reason)
        return Decision("wait", reason=ROOM)
    return Decision("grant", lease_bytes=min(room, max(need_bytes, block_bytes)))
