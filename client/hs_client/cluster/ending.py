"""What a run on many nodes has come to: the summaries of its clients made one. Pure logic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hs_client.leases.holder import Totals
from hs_client.leases.protocol import Hello, State
from hs_client.tally import SHOWN_PROBLEMS, Reason, Tally, show_bytes, show_seconds

__all__ = ["ClientEnd", "client_facts", "client_line", "total_tally"]


@dataclass(slots=True)
class ClientEnd:
    """A client that has ended: on which node, how, and what it had said. A lost one has no `summary`.

    `done` counts the samples of which the holder has heard that they are.
    `exit_code` is None where it was lost. `error` says why it ended before the rows did, or how it was lost.
    """

    node: str
    exit_code: int | None
    error: str = ""
    done: int = 0
    hello: Hello | None = None
    state: State = field(default_factory=State)
    summary: Mapping[str, Any] = field(default_factory=dict)


def total_tally(totals: Totals, first: Hello | None, ends: Sequence[ClientEnd], *, finished: bool) -> Tally:
    """One tally of all clients.

    Samples are those that the holder has counted. Where every row has ended, samples that nobody has counted were done
    by a client that was lost before it could say so: for the others they were done by another client. Tokens and bytes
    are what the clients' own summaries have, tokens of lost clients what they had said last.
    """
    tally = Tally(
        done=totals.done,
        adopted=totals.adopted,
        failed=totals.failed,
        rejected=totals.rejected,
        elsewhere=totals.elsewhere,
    )
    if first is not None:
        tally.total = first.left + first.rejected
        tally.earlier, tally.identical = first.done, first.identical
    if finished:
        tally.elsewhere += tally.left
    for end in ends:
        _add(tally, end)
    tally.problems = [
        f"{reason.where}: {reason.fate}: {reason.reason}" for reason in list(tally.reasons.values())[:SHOWN_PROBLEMS]
    ]
    return tally


def _add(tally: Tally, end: ClientEnd) -> None:
    found = end.summary
    if not found:
        tally.tokens += end.state.tokens
        return
    tally.conflicts += found["samples"]["conflicts"]
    tally.tokens += found["tokens"]
    tally.trained_tokens += found["trained_tokens"]
    tally.raw_bytes += found["raw_bytes"]
    tally.stored_bytes += found["stored_bytes"]
    tally.sent += found["requests"]
    tally.retried += found["retried"]
    for what, seconds in found["waited_s"].items():
        tally.waited_s[what] += seconds
    tally.generation.add(found["generation"])
    for each in found["reasons"]:
        where, _, reason = each["first"].partition(": ")
        known = tally.reasons.setdefault(
            (each["fate"], each["kind"]), Reason(each["fate"], each["kind"], 0, where, reason)
        )
        known.count += each["count"]


def _done(end: ClientEnd) -> int:
    return end.summary["samples"]["done"] if end.summary else max(end.done, end.state.done)


def client_line(end: ClientEnd) -> str:
    """What one client has done, and how it ended."""
    run = end.hello.run if end.hello is not None else ""
    found = end.summary
    words = [f"{_done(end)} done"]
    if found:
        words += [f"{found['samples'][name]} {name}" for name in ("failed", "rejected") if found["samples"][name]]
        seconds, tokens = found["seconds"], found["tokens"]
        words.append(f"{show_bytes(found['stored_bytes'])} stored in {show_seconds(seconds)}")
        if tokens and seconds > 0:
            words.append(f"{tokens / seconds:,.0f} tokens/s")
    ended = ""
    if end.exit_code is None:
        ended = f"; lost: {end.error}"
    elif end.error:
        ended = f"; exit code {end.exit_code}: {end.error}"
    return f"{end.node}: " + (f"run {run}, {', '.join(words)}" if run else "sent nothing") + ended


def client_facts(end: ClientEnd) -> dict[str, Any]:
    """The same for programs: ``exit_code`` is null where the client was lost, ``summary`` then empty."""
    return {
        "node": end.node,
        "run": end.hello.run if end.hello is not None else "",
        "exit_code": end.exit_code,
        "error": end.error,
        "done": _done(end),
        "summary": dict(end.summary),
    }
