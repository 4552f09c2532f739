"""Are the states what they must be, whatever the model? Pure functions over observations whose rows are all there.

Ranks compute the same sums, so their bits are compared; where they add up in another order, rounding is no finding
unless `--writers all` makes the mover compare bits too. Between passes the batches differ, and with them the rounding
and, in models with experts, now and then a route: there only what rounding cannot explain is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_server.doctor.canary import PREFIX_TOKENS
from hs_server.doctor.observation import Expected, Finding, Observation, listed, slot_name
from hs_server.doctor.records import RankRecord

__all__ = ["rank_rounding", "value_findings"]

_LOOSE = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.1}
"""How far the median row of two passes may differ, of its own size."""

_LOOSEST = {"float32": 0.05, "float16": 0.5, "bfloat16": 0.5}
"""How far any row may."""

_ROUNDING = {"float32": 1e-5, "float16": 0.01, "bfloat16": 0.01}
"""How far rows of two ranks may differ, of their own size."""


def value_findings(seen: Sequence[Observation], expected: Expected) -> list[Finding]:
    """Values that are no states, ranks and passes that disagree, rows of the wrong tokens."""
    return [*_values(seen, expected), *_ranks(seen, expected), *_stale(seen), *_passes(seen), *_prefix(seen)]


def _first_rank(seen: Iterable[Observation]) -> Iterator[tuple[Observation, RankRecord]]:
    """Each request with the record of its lowest rank, or the one its ranks share."""
    for it in seen:
        _, record = min(it.comparable().items(), default=(0, RankRecord()))
        if record.bits is not None:
            yield it, record


def _whole(seen: Iterable[Observation]) -> Iterator[tuple[Observation, int, RankRecord]]:
    for it in seen:
        for rank, record in sorted(it.comparable().items()):
            if record.bits is not None:
                yield it, rank, record


def _values(seen: Iterable[Observation], expected: Expected) -> Iterator[Finding]:
    worst: dict[str, Finding] = {}
    for it, rank, record in _whole(seen):
        values = record.values
        where = it.title + ("" if rank < 0 else f", rank {rank}")
        for slot in range(values.shape[1]):
            states = values[:, slot]
            name = slot_name(slot, expected)
            bad = np.flatnonzero(~np.isfinite(states).all(axis=1))
            if len(bad):
                worst.setdefault(
                    f"non-finite {slot}",
                    Finding(
                        f"non-finite values: {name}, token {record.tokens[bad[0]]} of {where}",
                        "the model overflows: another --dtype or --quantization, or damaged weights",
                    ),
                )
                continue
            flat = (states == states[:, :1]).all(axis=1) if states.shape[1] > 1 else np.zeros(len(states), bool)
            if flat.any():
                what = "zero" if not states[flat].any() else "one value in all channels"
                worst.setdefault(
                    f"constant {slot}",
                    Finding(
                        f"constant slot: {name} is {what} at {flat.sum()} of {len(states)} tokens of {where}",
                        "a buffer was read that nothing had written: report it",
                    ),
                )
            elif len(states) > 1 and len(set(it.prompt.ids)) > 1 and (states == states[:1]).all():
                worst.setdefault(
                    f"constant {slot}",
                    Finding(
                        f"constant slot: {name} is the same at all {len(states)} tokens of {where}",
                        "a buffer was read that nothing had written: report it",
                    ),
                )
            for other in range(slot):
                if np.array_equal(record.bits[:, slot], record.bits[:, other]):
                    worst.setdefault(
                        f"equal {slot}",
                        Finding(
                            f"equal slots: {slot_name(other, expected)} and {name} hold the same states of {where}",
                            "a boundary is captured twice, another is missing: report it",
                        ),
                    )
    yield from worst.values()


def rank_rounding(seen: Iterable[Observation], expected: Expected) -> str:
    """A note where ranks differ by no more than rounding; empty where they hold the same bits."""
    if expected.writers == "all":
        return ""  # the mover compares bits: any difference is a finding
    most = max((far for _, _, _, _, far in _rank_differences(seen)), default=0.0)
    return (
        f"whether ranks hold the same bits: they do not, by rounding, up to {most:.1e} of a row's size" if most else ""
    )


def _ranks(seen: Iterable[Observation], expected: Expected) -> Iterator[Finding]:
    texts: dict[tuple[int, int], list[str]] = {}
    for it, first, rank, differ, far in _rank_differences(seen):
        if expected.writers != "all" and far <= _ROUNDING[it.records[first].dtype]:
            continue
        slots = np.flatnonzero(differ.any(axis=0)).tolist()
        count = differ.any(axis=1).sum()
        text = f"{it.prompt.name}: {count} tokens, slots {listed(slots)}, by {far:.2g} of their size"
        texts.setdefault((first, rank), []).append(text)
    for (first, rank), found in texts.items():
        yield Finding(
            f"unequal ranks: rank {rank} holds other states than rank {first}: {'; '.join(found)}",
            "partial sums: launch with --enforce-disable-flashinfer-allreduce-fusion and --disable-custom-all-reduce",
        )


def _rank_differences(
    seen: Iterable[Observation],
) -> Iterator[tuple[Observation, int, int, npt.NDArray[np.bool_], float]]:
    """Where a rank's bits are not the first one's: which rows and slots [m, k+1], and how far at most, of a row."""
    for it in seen:
        if not it.every_rank or len(it.records) < 2:
            continue
        first, *others = sorted(it.records)
        a = it.records[first]
        for rank in others:
            b = it.records[rank]
            if a.bits is None or b.bits is None or a.bits.shape != b.bits.shape:
                continue  # another dtype or width than the marker says, which is a finding of its own
            differ = (a.bits != b.bits).any(axis=2)
            if differ.any():
                yield it, first, rank, differ, float(_far(a.values, b.values).max())


def _stale(seen: Sequence[Observation]) -> Iterator[Finding]:
    """Different prompts with the same states: the buffer of an earlier pass."""
    first: dict[str, tuple[Observation, RankRecord]] = {}
    for it, record in _first_rank(seen):
        if it.prompt.name in first or it.prompt.n <= PREFIX_TOKENS:
            continue
        for other, earlier in first.values():
            a, b = earlier.bits[PREFIX_TOKENS:], record.bits[PREFIX_TOKENS:]
            rows = min(len(a), len(b), 8)
            if rows and a.shape[1:] == b.shape[1:] and (same := (a[:rows] == b[:rows]).all(axis=(0, 2))).any():
                yield Finding(
                    f"stale states: {other.prompt.name} and {it.prompt.name} differ in their tokens and agree in slots "
                    f"{listed(np.flatnonzero(same).tolist())}",
                    "the buffer of an earlier batch was read: turn prefill graphs off, report it",
                )
                return
        first[it.prompt.name] = (it, record)


def _passes(seen: Sequence[Observation]) -> Iterator[Finding]:
    texts: list[str] = []
    earlier: dict[str, RankRecord] = {}
    for it, record in _first_rank(seen):
        before = earlier.setdefault(it.prompt.name, record)
        if before is not record and (text := _unlike(before, record)):
            texts.append(f"{it.prompt.name}: {text}")
    if texts:
        yield Finding(
            f"passes disagree: the same prompts, alone and together, gave other states: {'; '.join(texts)}",
            "rows of other requests or of an earlier batch were read: turn prefill graphs off, report it",
        )


def _prefix(seen: Sequence[Observation]) -> Iterator[Finding]:
    alone: dict[str, RankRecord] = {}
    for it, record in _first_rank(seen):
        alone.setdefault(it.prompt.name, record)
    a, b = alone.get("base"), alone.get("shared prefix")
    if a is None or b is None:
        return
    if text := _unlike(_first_rows(a, PREFIX_TOKENS), _first_rows(b, PREFIX_TOKENS)):
        yield Finding(
            f"wrong rows: two prompts with one prefix have other states in it: {text}",
            "rows are shifted or belong to other requests: report it",
        )


def _first_rows(record: RankRecord, rows: int) -> RankRecord:
    return RankRecord(tokens=record.tokens[:rows], bits=record.bits[:rows], dtype=record.dtype)


def _unlike(a: RankRecord, b: RankRecord) -> str:
    """How two captures of the same tokens differ; empty where rounding explains it."""
    if a.bits.shape != b.bits.shape or not np.array_equal(a.tokens, b.tokens):
        # Chunks may be cut elsewhere, so other rows may have been looked at.
        _, left, right = np.intersect1d(a.tokens, b.tokens, return_indices=True)
        a = RankRecord(tokens=a.tokens[left], bits=a.bits[left], dtype=a.dtype)
        b = RankRecord(tokens=b.tokens[right], bits=b.bits[right], dtype=b.dtype)
    if not len(a.tokens):
        return ""
    far = _far(a.values, b.values)
    loose, loosest = _LOOSE[a.dtype], _LOOSEST[a.dtype]
    wrong = (np.median(far, axis=0) > loose) | (far.max(axis=0) > loosest)
    slots = np.flatnonzero(wrong).tolist()
    if not slots:
        return ""
    rows = (far[:, slots] > loose).any(axis=1).sum()
    return f"{rows} of {len(far)} tokens, slots {listed(slots)}, by up to {far.max():.2g} of their size"


def _far(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Distance of each row and slot, of its size: [m, k+1]."""
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are a finding of their own
        size = np.maximum(np.linalg.norm(a, axis=2), np.linalg.norm(b, axis=2))
        far: npt.NDArray[Any] = np.linalg.norm(a - b, axis=2) / np.maximum(size, np.finfo(np.float32).tiny)
    return far
