"""Is everything there that was to be written, and is it what was asked for? Pure functions over observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hs_formats.tiling import cover
from hs_server.doctor.observation import Expected, Finding, Observation, listed

__all__ = ["missing_findings"]


def missing_findings(seen: Sequence[Observation], expected: Expected, *, graph_replays: int) -> list[Finding]:
    """Requests refused, rows missing, given up or cached, ids and provenance that differ."""
    return [
        *_refused(seen),
        *_silent(seen, expected, graph_replays=graph_replays),
        *_given_up(seen),
        *_cached(seen),
        *_broken(seen, expected),
        *_rows(seen),
    ]


def _refused(seen: Iterable[Observation]) -> Iterator[Finding]:
    for it in seen:
        if it.refused:
            yield Finding(f"no answer: {it.title}: {it.refused}", "the server's log says more")
        elif it.answer is not None and it.answer.finish == "abort":
            yield Finding(f"aborted: {it.title}: {it.answer.message}", "the server's log says more")
        elif it.answer is not None and it.answer.prompt_tokens != it.prompt.n:
            yield Finding(
                f"prompt changed: {it.title}: the server counted {it.answer.prompt_tokens} tokens",
                "drop what changes prompts, such as --allow-auto-truncate or a proxy",
            )


def _answered(seen: Iterable[Observation]) -> list[Observation]:
    return [it for it in seen if it.answer is not None]


def _silent(seen: Sequence[Observation], expected: Expected, *, graph_replays: int) -> Iterator[Finding]:
    answered = _answered(seen)
    said = [it for it in answered if it.records or it.failures]
    if answered and not said:
        yield Finding(
            f"silent hook: the server answered {len(answered)} requests, and no rank wrote a row of them",
            "look for a second installation of SGLang or hs-extract, or stale bytecode, and launch again",
        )
        return
    whole = [it for it in answered if it.every_rank]
    wanted = expected.ranks if whole else ()
    mute = [rank for rank in wanted if not any(rank in it.records or rank in it.failures for it in whole)]
    for rank in mute:
        yield Finding(
            f"silent hook on rank {rank}: it wrote nothing of {len(whole)} requests that other ranks wrote",
            "the server's log, lines of this rank; launch again",
        )
    partly: dict[tuple[int, ...], list[str]] = {}
    for it in answered:
        owed = [rank for rank in expected.ranks if rank not in mute] if it.every_rank else [-1]
        have = {*it.records, *it.failures} if it.every_rank else ({-1} if it.records or it.failures else set())
        missing = tuple(rank for rank in owed if rank not in have)
        if missing:
            partly.setdefault(missing, []).append(it.title)
    for ranks, names in partly.items():
        where = "" if ranks == (-1,) else f" on rank {listed(ranks)}"
        replayed = f"; {graph_replays} batches were replayed from a CUDA graph" if graph_replays else ""
        yield Finding(
            f"silent hook for some batches{where}: nothing of {'; '.join(names)}{replayed}",
            "turn prefill graphs off (--disable-prefill-cuda-graph, before SGLang 0.5.14 "
            "--disable-piecewise-cuda-graph), or use the capture mode `plugin`",
        )


def _given_up(seen: Iterable[Observation]) -> Iterator[Finding]:
    reasons: dict[str, list[str]] = {}
    for it in seen:
        for rank, reason in sorted(it.failures.items()):
            reasons.setdefault(reason, []).append(f"{it.prompt.name}, rank {rank}")
    for reason, where in reasons.items():
        if reason.startswith("wrong layer"):
            remedy = "this SGLang counts layers otherwise, or something else sets them: use a version that was tested"
        elif "auxiliary" in reason:
            remedy = (
                "the model does not hand over what it was asked for: something else sets its layers, or --no-capture"
            )
        else:
            remedy = "the server's log, and the table `capture failed` in the troubleshooting page"
        yield Finding(f"given up by the capture: {reason} ({len(where)} times, first: {where[0]})", remedy)


def _cached(seen: Iterable[Observation]) -> Iterator[Finding]:
    found = [it for it in seen if it.answer is not None and it.answer.cached_tokens > 0]
    if found:
        counts = ", ".join(f"{it.answer.cached_tokens} of {it.title}" for it in found if it.answer is not None)
        yield Finding(
            f"radix cache on: tokens came from a cached prefix and never passed the model: {counts}",
            "launch with --disable-radix-cache",
        )


def _broken(seen: Iterable[Observation], expected: Expected) -> Iterator[Finding]:
    others: set[str] = set()
    promised = (list(expected.boundaries), expected.dtype, expected.hidden_size)
    contents: list[tuple[list[int], str, int]] = []
    for it in seen:
        for rank, record in sorted(it.records.items()):
            for text in record.broken:
                yield Finding(f"unreadable part of rank {rank}: {text}", "report it with the file")
            others |= {meta.nonce for meta in record.metas} - {expected.nonce}
            contents += [(meta.boundaries, meta.dtype, meta.hidden_size) for meta in record.metas]
    if others:
        yield Finding(
            f"marker of another launch: parts carry the nonce {listed(sorted(others))}, the markers {expected.nonce}",
            "two servers use one scratch and port, or a marker was copied: stop them, launch again",
        )
    for found in (item for item in contents if item != promised):
        text = f"other content: parts hold {_content(*found)}, the markers promise {_content(*promised)}"
        yield Finding(text, "launch again")
        return


def _content(boundaries: list[int], dtype: str, hidden_size: int) -> str:
    return f"boundaries {boundaries}, {dtype}, {hidden_size} channels"


def _rows(seen: Iterable[Observation]) -> Iterator[Finding]:
    short: dict[tuple[int, str], list[str]] = {}
    for it in _answered(seen):
        for rank, record in sorted(it.comparable().items()):
            if not record.ranges:
                continue
            covered = cover(it.prompt.n, record.ranges)
            wrong = [f"rows {a}-{b} missing" for a, b in covered.gaps] + [
                f"rows {a}-{b} doubled" for a, b in covered.overlaps
            ]
            lengths = {meta.n for meta in record.metas} - {it.prompt.n}
            wrong += [f"of a prompt of {n} tokens" for n in sorted(lengths)]
            if wrong:
                short.setdefault((rank, "short rows"), []).append(f"{it.title}: {', '.join(wrong)}")
                continue
            sent = np.concatenate([np.asarray(it.prompt.ids[a:b], np.int64) for a, b in record.ranges])
            differ = np.flatnonzero(record.ids != sent)
            if len(differ):
                short.setdefault((rank, "wrong ids"), []).append(
                    f"{it.title}: {len(differ)} of {len(sent)} token ids are not those sent"
                )
    for (rank, kind), texts in short.items():
        where = "" if rank < 0 else f" of rank {rank}"
        yield Finding(
            f"{kind}{where}: {'; '.join(texts)}",
            "look for another plugin or patch that cuts or reorders batches; drop it, launch again",
        )
