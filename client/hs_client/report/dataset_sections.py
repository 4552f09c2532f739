"""The dataset as a whole: numbers at the head, lengths, what is missing and why, where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hs_client.report.charts import Bar, bars, columns
from hs_client.report.facts import DatasetFacts, RunFacts
from hs_client.report.markup import figure, note, table, tiles
from hs_client.report.scales import Axis, linear_axis, show_number, show_short, show_time
from hs_client.report.series import histogram
from hs_client.tally import Reason, percentile, show_bytes
from hs_formats.mask import supervised

__all__ = ["head_tiles", "length_section", "loss_section", "provenance_section", "runs_table"]

_MOST_REASONS = 12
_EXACT = 100_000_000
_TONES = {"failed": "s2", "rejected": "s4", "open": "s3", "quarantined": "s2"}


def head_tiles(facts: DatasetFacts) -> Iterator[str]:
    """What one wants to know first, and loudly what is wrong."""
    samples = facts.index.samples.values()
    tokens = sum(sample.n for sample in samples)
    trained = sum(supervised(sample.mask_spans) for sample in samples)
    raw = sum(line.raw_bytes for sample in samples for line in sample.parts)
    stored = sum(line.stored_bytes for sample in samples for line in sample.parts)
    verified = len(samples) - len(facts.verified.missing(samples)) if facts.verified.verified_at else 0
    yield tiles(
        [
            (f"{len(samples):,}", "samples"),
            (
                f"{tokens:,}" if tokens < _EXACT else show_short(tokens),
                f"tokens, {trained / tokens:.0%} of them trained on" if tokens else "tokens",
            ),
            (show_bytes(stored), f"stored, of {show_bytes(raw)} raw"),
            (f"{stored / raw:.1%}" if raw else "–", "stored size of raw"),
            (f"{verified:,}", "verified samples")
            if facts.verified.verified_at
            else ("never", "verified: see hs-client verify"),
            (f"{sum(reason.count for reason in facts.lost):,}", "rows failed, rejected or open"),
        ]
    )
    if facts.index.broken:
        yield note(
            f"{len(facts.index.broken):,} done samples have no whole record: hs-client verify names them.", bad=True
        )
    if facts.storage.damaged_lines:
        yield note(f"{facts.storage.damaged_lines:,} lines of manifests cannot be read: hs-client verify.", bad=True)


def runs_table(runs: Sequence[RunFacts]) -> str:
    """All runs, newest first."""
    heads = ("run", "started (UTC)", "prompts", "sent", "done", "failed attempts", "rejected", "ended")
    rows = [
        (
            run.run,
            show_time(run.started_at),
            ", ".join(run.started.inputs) if run.started else "not known",
            *(f"{run.counts[kind]:,}" for kind in ("sent", "done", "failed", "rejected")),
            run.ending,
        )
        for run in reversed(runs)
    ]
    return table(heads, rows, numbers=(3, 4, 5, 6))


def length_section(facts: DatasetFacts) -> Iterator[str]:
    """How long samples are, and how much of them is trained on."""
    samples = list(facts.index.samples.values())
    if not samples:
        yield note("There are no samples.")
        return
    yield '<div class="pair">'
    yield _lengths("Tokens of a sample", [sample.n for sample in samples])
    yield _lengths("Tokens trained on", [supervised(sample.mask_spans) for sample in samples])
    yield "</div>"


def _lengths(title: str, lengths: Sequence[int]) -> str:
    bins = histogram(lengths)
    low, high = bins[0].low, bins[-1].high
    rounded = linear_axis("tokens", float(high), low=float(low), show=lambda value: f"{value:,.0f}", whole=True)
    x = Axis("tokens", float(low), float(high), tuple(tick for tick in rounded.ticks if low <= tick[0] <= high))
    most = max(each.count for each in bins)
    spans = [
        (each.low, each.high, each.count, f"{each.low:,} to {each.high - 1:,} tokens: {each.count:,} samples")
        for each in bins
    ]
    words = (
        f"{min(lengths):,} to {max(lengths):,}, median {percentile(lengths, 0.5):,.0f}, mean"
        f" {show_number(sum(lengths) / len(lengths))}, 95 % up to {percentile(lengths, 0.95):,.0f}"
    )
    chart = columns(title, words, spans, x, linear_axis("samples", float(most), whole=True))
    return figure(title, chart, about=words)


def loss_section(facts: DatasetFacts) -> Iterator[str]:
    """Rows that are no samples, and attempts that failed."""
    if facts.lost:
        yield from _reasons("Rows that are not in the dataset", facts.lost)
    else:
        yield note("Every row that was looked at is a sample.")
    if facts.attempts:
        yield from _reasons("Failed attempts and quarantined parts, repeated or not", facts.attempts)


def _reasons(title: str, reasons: Sequence[Reason]) -> Iterator[str]:
    shown = reasons[:_MOST_REASONS]
    rows = [
        Bar(f"{reason.fate}: {reason.kind}", reason.count, f"{reason.count:,}", _TONES[reason.fate], reason.reason)
        for reason in shown
    ]
    words = ", ".join(f"{row.label} {row.text}" for row in rows)
    rest = len(reasons) - len(shown)
    about = f"{sum(reason.count for reason in reasons):,} in all" + (
        f"; {rest} rarer reasons are only below" if rest else ""
    )
    yield figure(title, bars(title, words, rows), about=about)
    inner = table(
        ("", "kind", "count", "first", "what was said of it"),
        [(reason.fate, reason.kind, f"{reason.count:,}", reason.where, reason.reason) for reason in reasons],
        numbers=(2,),
    )
    yield f"<details><summary>An example of each</summary>{inner}</details>"


def provenance_section(facts: DatasetFacts) -> Iterator[str]:
    """Model, capture, tokenizer, storage, verification."""
    info, storage, verified = facts.info, facts.storage, facts.verified
    versions = sorted({run.started.version for run in facts.runs if run.started})
    servers = sorted({server for run in facts.runs if run.started for server in run.started.servers})
    rows = [
        ("dataset", str(facts.root)),
        ("model", f"{info.model}, {info.num_layers} layers, hidden size {info.hidden_size:,}, {info.dtype}"),
        ("hash of the model", info.config_hash),
        ("boundaries", ", ".join(map(str, info.boundaries)) + f", and the last state ({info.last_state})"),
        ("tokenizer", f"{info.tokenizer or 'none'}, {info.tokenizer_hash or 'no hash'}"),
        ("chat template", f"{info.template_hash or 'no hash'}, arguments {info.template_arguments or 'none'}"),
        ("trained on", f"{info.train_on} turns of the assistant" if info.train_on else "not known"),
        *((("answers", info.generation),) if info.generation else ()),
        *((f"capture: {key}", str(value)) for key, value in sorted(info.capture.items())),
        ("servers", ", ".join(servers) or "not known"),
        ("hs-extract", ", ".join(versions) or "not known"),
        ("movers", ", ".join(storage.movers) or "none"),
        ("parts", ", ".join(f"{count:,} {name}" for name, count in storage.codecs.most_common()) or "none"),
        ("flags of parts", ", ".join(f"{count:,} {name}" for name, count in storage.flags.most_common()) or "none"),
        (
            "stored",
            f"{show_time(storage.first_at)} to {show_time(storage.last_at)} UTC" if storage.first_at else "not known",
        ),
        (
            "verified",
            f"{show_time(verified.verified_at)} UTC: {', '.join(verified.checks)}" if verified.verified_at else "never",
        ),
    ]
    yield table((), rows)
