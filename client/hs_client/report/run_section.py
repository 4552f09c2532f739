"""What one run looked like over time: throughput, scratch, answers, and what limited it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hs_client.report.charts import Curve, curves, shares
from hs_client.report.facts import RunFacts
from hs_client.report.markup import figure, note, tiles
from hs_client.report.scales import Axis, linear_axis, show_number, show_short, time_axis
from hs_client.report.series import PARTIES, Interval, intervals, stored_rates, waited_shares
from hs_client.tally import show_bytes, show_seconds
from hs_formats.timeline import TimelinePoint

__all__ = ["limits_in_words", "run_section"]

_TIME = "time since the run began to send"
_TONES = ("s1", "s2", "s4", "s3", "s5")
_PARTIES = {
    "server": "the server: it is at its limit, or --concurrency is",
    "scratch": "room in scratch",
    "mover": "the mover",
    "tokeniser": "rows to be tokenised",
}
_SENDING = "nothing: sending"


def run_section(run: RunFacts) -> Iterator[str]:
    """The charts of a run, as HTML; of one without a timeline only what the manifest tells."""
    spans = intervals(run.timeline)
    if not spans:
        yield from _without_timeline(run)
        return
    first, last = run.timeline[0], run.timeline[-1]
    spent_s = last.run_s - first.run_s
    yield _run_tiles(first, last, spent_s)
    yield note(f"How it ended: {run.ending}.", bad=last.exit_code not in (0, 1))
    x = time_axis(_TIME, last.run_s)
    yield '<div class="pair">'
    yield _throughput(spans, x)
    yield _scratch(spans, x)
    yield _answers(spans, x)
    yield _limits(first, last, spans, x)
    yield "</div>"


def _run_tiles(first: TimelinePoint, last: TimelinePoint, spent_s: float) -> str:
    tokens, samples = last.tokens - first.tokens, last.done - first.done
    return tiles(
        [
            (f"{samples:,}", "samples done"),
            (show_seconds(spent_s), "from the first request to the end"),
            (show_number(tokens / spent_s), "tokens a second, on average"),
            (f"{show_bytes((last.raw_bytes - first.raw_bytes) / spent_s)}/s", "of states, before compression"),
            (f"{last.sent:,}", f"requests, {last.retried:,} of them again" if last.retried else "requests"),
            (f"{last.failed + last.rejected:,}", "failed or rejected"),
        ]
    )


def _throughput(spans: Sequence[Interval], x: Axis) -> str:
    most = max(span.tokens_per_s for span in spans)
    line = Curve("tokens/s", "s1", [(span.start_s, span.stop_s, span.tokens_per_s) for span in spans], filled=True)
    words = f"Up to {show_number(most)} tokens a second."
    chart = curves("Throughput over time", words, [line], x, linear_axis("tokens/s", most))
    return figure("Throughput", chart, about="prompt tokens of samples that became done")


def _scratch(spans: Sequence[Interval], x: Axis) -> str:
    used = max(span.used_bytes for span in spans)
    limit = max(span.limit_bytes for span in spans)
    if not limit:
        return figure("Scratch fill", "", about="the movers said nothing of it while the run lasted")
    size, unit = next(
        ((size, unit) for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if limit >= size), (1e3, "kB")
    )
    lines = [
        Curve("used", "s1", [(span.start_s, span.stop_s, span.used_bytes / size) for span in spans], filled=True),
        Curve(
            "limit",
            "limit",
            [(span.start_s, span.stop_s, (span.limit_bytes or None) and span.limit_bytes / size) for span in spans],
        ),
    ]
    words = f"At most {show_bytes(used)} of the {show_bytes(limit)} that may be used."
    chart = curves("Scratch fill over time", words, lines, x, linear_axis(unit, max(used, limit) / size))
    return figure("Scratch fill", chart, about=words, keys=[("s1", "used"), ("limit", "limit")])


def _answers(spans: Sequence[Interval], x: Axis) -> str:
    known = [span.p95_s for span in spans if span.p95_s is not None]
    if not known:
        return figure("Time to an answer", "", about="nothing was answered")
    lines = [
        Curve("95th percentile", "s2", [(span.start_s, span.stop_s, span.p95_s) for span in spans]),
        Curve("median", "s1", [(span.start_s, span.stop_s, span.p50_s) for span in spans]),
    ]
    words = f"The 95th percentile is at most {show_number(max(known))} s."
    chart = curves("Time to an answer", words, lines, x, linear_axis("seconds", max(known)))
    keys = [("s1", "median"), ("s2", "95th percentile")]
    return figure("Time to an answer", chart, about="its time in the server's queue included", keys=keys)


def limits_in_words(waited: Sequence[float]) -> str:
    """For whom was waited, from shares by PARTIES."""
    named = sorted(
        ((share, party) for share, party in zip(waited, PARTIES, strict=True) if share >= 0.005), reverse=True
    )
    if not named:
        return "The run hardly waited at all."
    return "Requests waited for " + ", ".join(f"the {party} {share:.0%} of the time" for share, party in named) + "."


def _limits(first: TimelinePoint, last: TimelinePoint, spans: Sequence[Interval], x: Axis) -> str:
    words = limits_in_words(waited_shares(first, last))
    parts = [(span.start_s, span.stop_s, (*span.waited, max(0.0, 1 - sum(span.waited)))) for span in spans]
    y = linear_axis("share of the time", 1.0, show=lambda share: f"{share:.0%}")
    chart = shares("What limited the run", words, parts, _TONES, x, y, height=190)
    seen = [max(part[number] for _, _, part in parts) > 0 for number in range(len(_TONES))]
    names = [*(_PARTIES[party] for party in PARTIES), _SENDING]
    keys = [(tone, name) for tone, name, any_of_it in zip(_TONES, names, seen, strict=True) if any_of_it]
    return figure("What limited it", chart, about=words, keys=keys)


def _without_timeline(run: RunFacts) -> Iterator[str]:
    yield note(
        "This run has no timeline (it kept none, it was too short, or the file is gone), so scratch, answers and limits"
        " are not known."
    )
    rates = stored_rates(run.stored)
    if rates:
        most = max(rate for _, _, rate in rates)
        x = time_axis("time since the first sample was stored", rates[-1][1])
        chart = curves(
            "Throughput over time",
            f"Up to {show_short(most)} tokens a second, by when samples were stored.",
            [Curve("tokens/s", "s1", rates, filled=True)],
            x,
            linear_axis("tokens/s", most),
        )
        yield figure("Throughput", chart, about="by when movers stored the samples, from the manifest")
