"""Slot by slot: how large states are, which channels stand out, how small they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hs_client.report.charts import Bar, Curve, Whisker, bars, curves, whiskers
from hs_client.report.markup import figure, note, table
from hs_client.report.scales import Axis, linear_axis, log_axis, show_number
from hs_client.report.values import OUTLIER_TIMES, SlotValues, ValueFacts
from hs_client.tally import show_bytes

__all__ = ["slot_section"]

_COLUMNS = 340
_MANY = 1e4
"""Axes of sizes are logarithmic, and end this far below the largest at the latest."""


def slot_section(values: ValueFacts, *, of: int) -> Iterator[str]:
    """As HTML; `of`: samples in the dataset."""
    if values.unreadable:
        yield note(
            f"{len(values.unreadable)} of the samples drawn cannot be read; hs-client verify names all",
            bad=True,
        )
        yield table((), [(text.partition(": ")[0], text.partition(": ")[2]) for text in values.unreadable])
    slots = values.slots
    if not slots:
        yield note("No values were read.")
        return
    yield note(f"From {values.samples:,} of {of:,} samples, drawn at random: {values.tokens:,} tokens.")
    yield _sizes(slots)
    yield from _channels(slots)
    yield _compression(slots)


def _sizes(slots: Sequence[SlotValues]) -> str:
    ends = [end for slot in slots for end in (slot.low, slot.high, slot.first_rms) if end is not None and end > 0]
    if not ends:
        return note("All states are zero: hs-client verify.", bad=True)
    axis = log_axis("RMS of a token's state", max(min(ends), max(ends) / _MANY), max(ends))
    rows = [
        Whisker(
            slot.name,
            slot.low,
            slot.rms,
            slot.high,
            slot.first_rms,
            f"median {show_number(slot.rms)},"
            f" 5 % to 95 % of tokens {show_number(slot.low)} to {show_number(slot.high)},"
            + (f" first token {show_number(slot.first_rms)}," if slot.first_rms is not None else "")
            + f" largest magnitude {show_number(slot.max_abs)}",
        )
        for slot in slots
    ]
    words = "; ".join(f"{row.label}: {row.hint}" for row in rows)
    return figure(
        "Size of the states by slot",
        whiskers("Size of the states by slot", words, rows, axis),
        about="median token, 5 % to 95 % of tokens",
        keys=[("s1", "all but first tokens"), ("s2", "first tokens, median")],
    )


def _channels(slots: Sequence[SlotValues]) -> Iterator[str]:
    yield "<h3>Channels</h3>"
    yield note(
        "RMS of each channel over tokens, the first of each sample left out. A channel stands out from"
        f" {OUTLIER_TIMES:.0f} times the median channel on."
    )
    yield '<div class="pair">'
    for slot in slots:
        yield _spikes(slot)
    yield "</div>"
    rows = [
        (
            slot.name if not number else "",
            f"{outlier.channel:,}",
            show_number(outlier.rms),
            f"{outlier.rms / (float(np.median(slot.channel_rms)) or 1.0):,.0f}",
            f"{outlier.share:.1%}",
        )
        for slot in slots
        for number, outlier in enumerate(slot.outliers)
    ]
    if rows:
        heads = ("slot", "channel", "RMS", "times the median channel", "share of the slot's energy")
        yield table(heads, rows, numbers=(1, 2, 3, 4))
    else:
        yield note("No channel stands out.")


def _spikes(slot: SlotValues) -> str:
    rms = slot.channel_rms
    median, most = float(np.median(rms)), float(rms.max())
    if most <= 0:
        return figure(slot.name, "", about="all zero")
    width = -(-len(rms) // _COLUMNS)
    spans = [
        (float(at), float(min(at + width, len(rms))), float(rms[at : at + width].max()))
        for at in range(0, len(rms), width)
    ]
    floor = max(float(rms[rms > 0].min()), most / _MANY)
    lines = [
        Curve("largest channel", "s1", spans, filled=True),
        Curve("median channel", "s2", [(0.0, float(len(rms)), median)]),
    ]
    known = ", ".join(f"{outlier.channel}" for outlier in slot.outliers)
    words = f"{slot.outlier_count} stand out" + (
        f": {known}" + ", …" * (slot.outlier_count > len(slot.outliers)) if known else ""
    )
    chart = curves(
        f"RMS by channel, {slot.name}",
        f"Median channel {show_number(median)}, largest {show_number(most)}; {words}.",
        lines,
        _channel_axis(len(rms)),
        log_axis("RMS", floor, most),
        height=170,
    )
    return figure(slot.name, chart, about=words, keys=[("s1", "channels"), ("s2", "median")])


def _channel_axis(count: int) -> Axis:
    rounded = linear_axis("channel", float(count), show=lambda value: f"{value:,.0f}", whole=True)
    return Axis("channel", 0.0, float(count), tuple(tick for tick in rounded.ticks if tick[0] <= count))


def _compression(slots: Sequence[SlotValues]) -> str:
    if not all(slot.stored_bytes for slot in slots):
        return "<h3>Compression by slot</h3>" + note(
            "Not known: the parts that were read are of a codec that does not store slots apart (zstd, none)."
        )
    rows = [
        Bar(
            slot.name,
            slot.stored_bytes / slot.raw_bytes,
            f"{slot.stored_bytes / slot.raw_bytes:.1%}",
            hint=f"{slot.name}: {show_bytes(slot.raw_bytes)} are stored in {show_bytes(slot.stored_bytes)}",
        )
        for slot in slots
    ]
    words = ", ".join(f"{row.label} {row.text}" for row in rows)
    chart = bars("Stored size of what it is raw", words, rows, high=1.0)
    return figure(
        "Compression by slot", chart, about="stored bytes of the bytes of the states, lossless; a full bar is 100 %"
    )
