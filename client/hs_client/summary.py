"""What a run has come to: the closing lines, and the same for programs."""

from __future__ import annotations

from typing import Any

from hs_client.tally import SHOWN_PROBLEMS, Tally, percentile, show_bytes, show_seconds

__all__ = ["summary", "summary_lines"]

_MAX_EXAMPLE = 160


def summary_lines(tally: Tally, *, spent_s: float, pending: int, ledger: bool) -> list[str]:
    """What became of every sample, bytes, time, and a table of why rows were not done; `ledger`: there is one of it."""
    t = tally
    counts = [
        f"{t.done} done" + (f" ({t.adopted} adopted)" if t.adopted else ""),
        f"{t.failed} failed",
        f"{t.rejected} rejected",
        f"{t.earlier} done earlier",
    ]
    if t.elsewhere:
        counts.append(f"{t.elsewhere} done by another client meanwhile")
    if t.conflicts:
        counts.append(f"{t.conflicts} done by another client too, with other content")
    if t.identical:
        counts.append(f"{t.identical} identical rows stored once")
    if pending:
        counts.append(f"{pending} pending")
    lines = [f"samples    {', '.join(counts)}"]
    if t.done:
        ratio = f", {t.raw_bytes / t.stored_bytes:.2f} times smaller" if t.stored_bytes else ""
        lines += [
            f"tokens     {t.tokens:,}, of which {t.trained_tokens:,} to train on",
            f"bytes      {show_bytes(t.raw_bytes)} raw, {show_bytes(t.stored_bytes)} stored{ratio}",
        ]
    if t.generation:
        lines.append(f"generated  {_generated(t)}")
    rate = f", {t.done / spent_s:.1f} samples/s, {t.tokens / spent_s:,.0f} tokens/s" if t.done and spent_s > 0 else ""
    lines.append(f"time       {show_seconds(spent_s)}, {t.sent} requests{rate}")
    if t.latencies_s:
        p50_s, p95_s = percentile(t.latencies_s, 0.5), percentile(t.latencies_s, 0.95)
        lines.append(f"answers    p50 {p50_s:.2f} s, p95 {p95_s:.2f} s (the last {len(t.latencies_s)})")
    waits = [f"{show_seconds(seconds)} for {what}" for what, seconds in t.waited_s.most_common(4) if seconds >= 0.1]
    if waits:
        lines.append(f"waited     {', '.join(waits)}")
    return lines + _why(t, ledger=ledger)


def _generated(tally: Tally) -> str:
    g = tally.generation
    words = [f"{g.answers:,} answers of {g.tokens:,} tokens in {show_seconds(g.seconds)}"]
    if g.answers and g.seconds > 0:
        words.append(f"{g.tokens / g.seconds:,.0f} tokens/s")
    words += [
        f"{count:,} {name}"
        for count, name in ((g.reused, "of earlier runs"), (g.cut, "cut at the limit"), (g.rejected, "rejected"))
        if count
    ]
    return ", ".join(words)


def _why(tally: Tally, *, ledger: bool) -> list[str]:
    t = tally
    lines: list[str] = []
    if any(reason.count > 1 for reason in t.reasons.values()):
        for reason in sorted(t.reasons.values(), key=lambda each: -each.count):
            example = f"{reason.where}: {reason.reason}"
            cut = example if len(example) <= _MAX_EXAMPLE else example[: _MAX_EXAMPLE - 1] + "…"
            kind = f" ({reason.kind})" if reason.fate == "failed" else ""
            lines.append(f"{reason.fate:<10} {reason.count:>7,}{kind}, first {cut}")
    lines += [f"  {problem}" for problem in t.problems]
    more = t.failed + t.rejected + t.conflicts - len(t.problems)
    if more > 0 and len(t.problems) >= SHOWN_PROBLEMS:
        lines.append(
            f"  … and {more} more" + (", in the ledger" if ledger else "; nothing was sent, so no ledger names them")
        )
    return lines


def summary(tally: Tally, *, spent_s: float, pending: int, exit_code: int, **facts: Any) -> dict[str, Any]:
    """The same as an object for JSON. `facts` come first."""
    t = tally
    return {
        **facts,
        "exit_code": exit_code,
        "samples": {
            "done": t.done,
            "adopted": t.adopted,
            "failed": t.failed,
            "rejected": t.rejected,
            "done_earlier": t.earlier,
            "identical": t.identical,
            "done_elsewhere": t.elsewhere,
            "conflicts": t.conflicts,
            "pending": pending,
        },
        "generation": {
            **t.generation.facts(),
            "latency_p50_s": round(percentile(t.generation.latencies_s, 0.5), 4),
            "latency_p95_s": round(percentile(t.generation.latencies_s, 0.95), 4),
        },
        "tokens": t.tokens,
        "trained_tokens": t.trained_tokens,
        "raw_bytes": t.raw_bytes,
        "stored_bytes": t.stored_bytes,
        "seconds": round(spent_s, 3),
        "requests": t.sent,
        "retried": t.retried,
        "latency_p50_s": round(percentile(t.latencies_s, 0.5), 4),
        "latency_p95_s": round(percentile(t.latencies_s, 0.95), 4),
        "waited_s": {what: round(seconds, 3) for what, seconds in t.waited_s.most_common()},
        "reasons": [
            {"fate": r.fate, "kind": r.kind, "count": r.count, "first": f"{r.where}: {r.reason}"}
            for r in sorted(t.reasons.values(), key=lambda each: -each.count)
        ],
    }
