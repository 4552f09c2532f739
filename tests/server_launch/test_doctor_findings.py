"""Properties of the doctor's findings: none for sound records, one for whatever is changed in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from canary_server import BOUNDARIES, HIDDEN, NONCE, causal_states
from hs_formats.names import canary_of_every_rank
from hs_formats.tiling import Writers
from hs_server.doctor.canary import canary_rids, make_prompts
from hs_server.doctor.observation import Expected, Finding, Observation
from hs_server.doctor.presence import missing_findings
from hs_server.doctor.records import RankRecord
from hs_server.doctor.values import value_findings
from hs_server.doctor.wire import Answer
from markers import make_meta

DTYPES = {"float32": np.uint32, "bfloat16": np.uint16}


def expected_of(ranks: int, writers: Writers, dtype: str) -> Expected:
    owners = (0,) if writers == "first" else tuple(range(ranks))
    return Expected(NONCE, BOUNDARIES, dtype, HIDDEN, tuple(range(ranks)), writers, owners)


def bits_of(values: Any, dtype: str) -> Any:
    bits = values.view(np.uint32)
    return bits if dtype == "float32" else (bits >> 16).astype(np.uint16)


def record_of(ids: tuple[int, ...], start: int, stop: int, dtype: str) -> RankRecord:
    meta = make_meta(
        start=start,
        stop=stop,
        n=len(ids),
        boundaries=list(BOUNDARIES),
        dtype=dtype,
        hidden_size=HIDDEN,
        nonce=NONCE,
    )
    return RankRecord(
        metas=[meta],
        ranges=[(start, stop)],
        ids=np.asarray(ids[start:stop], np.int64),
        tokens=np.arange(start, stop, dtype=np.int64),
        bits=bits_of(causal_states(ids)[start:stop], dtype),
        dtype=dtype,
    )


def observe(seed: int, *, ranks: int, chunk: int, writers: Writers, dtype: str) -> list[Observation]:
    """What a sound server's ranks write."""
    prompts = make_prompts(seed=seed, chunk_size=chunk, longest=512)
    seen: list[Observation] = []
    for prompt in prompts:
        for rid in canary_rids(prompts, seed=seed)[prompt.name]:
            every = writers == "all" or canary_of_every_rank(rid)
            it = Observation(prompt, rid, every, Answer("length", "", prompt.n, 0))
            for rank in range(ranks):
                low, high = 0, prompt.n
                if not every and writers == "spread":
                    low, high = prompt.n * rank // ranks, prompt.n * (rank + 1) // ranks
                if low < high and (every or writers == "spread" or rank == 0):
                    it.records[rank] = record_of(prompt.ids, low, high, dtype)
            seen.append(it)
    return seen


def findings(seen: list[Observation], expected: Expected) -> list[Finding]:
    return missing_findings(seen, expected, graph_replays=0) or value_findings(seen, expected)


cases = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, 3),
        "chunk": st.sampled_from([0, 8, 16, 40]),
        "writers": st.sampled_from(["first", "spread", "all"]),
        "dtype": st.sampled_from(sorted(DTYPES)),
    }
)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), cases)
def test_sound_records_pass(seed: int, case: dict[str, Any]) -> None:
    assert findings(observe(seed, **case), expected_of(case["ranks"], case["writers"], case["dtype"])) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), cases, st.data())
def test_whatever_is_changed_is_found(seed: int, case: dict[str, Any], data: st.DataObject) -> None:
    seen = observe(seed, **case)
    it = data.draw(st.sampled_from(seen), label="request")
    rank = data.draw(st.sampled_from(sorted(it.records)), label="rank")
    record = it.records[rank]
    row = data.draw(st.integers(0, len(record.ids) - 1), label="row")
    kinds = ["lost", "row missing", "id", "nonce", "nan", "dead slot"]
    if it.every_rank and len(it.records) > 1:
        kinds.append("value")
    kind = data.draw(st.sampled_from(kinds), label="kind")
    words = {"value": "unequal ranks", "nan": "non-finite", "dead slot": "constant slot", "nonce": "marker of another"}
    if kind == "lost":
        del it.records[rank]
    elif kind == "row missing":
        start, stop = record.ranges[0]
        ranges = [(start, start + row), (start + row + 1, stop)]
        record.ranges = [(a, b) for a, b in ranges if a < b] or [(stop, stop)]
        record.ids = np.delete(record.ids, row)
    elif kind == "id":
        record.ids[row] += 1
    elif kind == "nonce":
        record.metas = [replace(record.metas[0], nonce="f" * 16)]
    else:
        values = record.values.copy()
        if kind == "nan":
            values[row, 1, 5] = np.nan
        elif kind == "dead slot":
            values[row, 2] = 0.0
        else:
            values[row, 0] *= 1.1
        record.bits = bits_of(values, record.dtype)
    found = findings(seen, expected_of(case["ranks"], case["writers"], case["dtype"]))
    assert found, kind
    assert any(words.get(kind, "") in finding.text for finding in found), [finding.text for finding in found]
    assert all(finding.remedy for finding in found)
