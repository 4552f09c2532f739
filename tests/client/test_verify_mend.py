"""The logic of a repair, over books harmed at random; and the judges of a set, over values made by hand."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hs_client.verify import heads as heads_module
from hs_client.verify.content import RecordReader
from hs_client.verify.heads import MIN_GROUP, Beginnings, odd_members
from hs_client.verify.mend import FileFacts, mend_ledgers, mend_manifests
from hs_client.verify.sizes import MIN_SAMPLES, odd_values
from hs_client.verify.tokens import Sketch, TokenMeans, verdict
from hs_formats.index import DatasetIndex
from hs_formats.ledger import Done, Failed, Intent, LedgerLine, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid

RUNS = ("0000abcd", "0000beef")
SAMPLES = range(6)


def _manifest_line(rid: Rid, start: int, stop: int) -> ManifestLine:
    return ManifestLine(
        part=str(PartName(rid, start, stop, 5, 0)), status="stored", path=f"data/{rid}.{start}", raw_bytes=1,
        stored_bytes=1, codec="none", xxh3=f"{rid}.{start}", rows_xxh3=f"rows {rid}.{start}", expected_ranks=[0],
    )  # fmt: skip


def _rid(at: int) -> Rid:
    return Rid(RUNS[at % 2], at, 0)


MANIFEST = [_manifest_line(_rid(at), start, stop) for at in SAMPLES for start, stop in ((0, 3), (3, 5))]
IDS = {str(_rid(at)): f"ids {at}" for at in SAMPLES}


def _ledgers() -> dict[str, list[LedgerLine]]:
    books: dict[str, list[LedgerLine]] = {
        run: [RunStarted(run=run, started_at=run, inputs=[], servers=[], version="")] for run in RUNS
    }
    for at in SAMPLES:
        rid = str(_rid(at))
        books[_rid(at).run].append(Intent(sample_id=f"s{at}", rid=rid, n=5, ids_xxh3=IDS[rid], mask=[(1, 3)]))
    for at in SAMPLES:
        books[_rid(at).run].append(Done(sample_id=f"s{at}", rid=str(_rid(at)), finish_reason="length"))
    return books


CHANGES: list[dict[str, Any]] = [
    {"sample_id": "stranger"},
    {"sample_id": "s1"},
    {"rid": str(_rid(2))},
    {"rid": "hs-0000abcd-00000077-00"},
    {"n": 4},
    {"ids_xxh3": "others"},
    {"mask": [(0, 9)]},
    {"mask": [(2, 4), (1, 3)]},
]


@st.composite
def harmed(draw: st.DrawFn) -> tuple[dict[str, list[LedgerLine]], list[ManifestLine], dict[str, str]]:
    """Ledgers with lines lost, doubled and changed; manifest lines lost; records whose values are bad."""
    ledgers = _ledgers()
    for _ in range(draw(st.integers(0, 4))):
        lines = ledgers[draw(st.sampled_from(RUNS))]
        if not lines:
            continue
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "double", "change"])):
            case "drop":
                lines.pop(at)
            case "double":
                lines.append(lines[at])
            case _:
                changes = draw(st.sampled_from(CHANGES))
                fields = lines[at].__struct_fields__
                lines[at] = msgspec.structs.replace(lines[at], **{k: v for k, v in changes.items() if k in fields})
    manifest = [line for line in MANIFEST if draw(st.integers(0, 9))]
    bad = {str(_rid(at)): "not finite" for at in SAMPLES if not draw(st.integers(0, 9))}
    return ledgers, manifest, bad


@settings(max_examples=300)
@given(harmed())
def test_mended_ledgers_call_done_what_is_whole_and_nothing_else(
    books: tuple[dict[str, list[LedgerLine]], list[ManifestLine], dict[str, str]],
) -> None:
    ledgers, manifest, bad = books
    mended = mend_ledgers(ledgers, manifest, IDS, bad=bad)
    index = DatasetIndex.build(mended.ledgers.values(), manifest)
    assert index.broken == {}
    parts = [line.part for line in manifest]
    for name, sample in index.samples.items():
        assert sample.ids_xxh3 == IDS[str(sample.rid)]
        assert str(sample.rid) not in bad
        assert sum(part.startswith(str(sample.rid)) for part in parts) == 2
        assert any(isinstance(line, Intent) and line.sample_id == name for lines in ledgers.values() for line in lines)
    # What was done before either is still done, or is said to be lost.
    before = {line.sample_id for lines in ledgers.values() for line in lines if isinstance(line, Done)}
    assert set(mended.lost) == before - set(index.samples)
    assert set(mended.found) == set(index.samples) - before
    # Nothing is invented.
    known = [line for lines in ledgers.values() for line in lines]
    for lines in mended.ledgers.values():
        for line in lines:
            new_done = isinstance(line, Done) and line.adopted
            new_failed = isinstance(line, Failed) and line.kind == "damaged"
            assert line in known or new_done or new_failed
    again = mend_ledgers(mended.ledgers, manifest, IDS, bad=bad)
    assert (again.ledgers, again.found, again.lost) == (mended.ledgers, [], {})


def test_a_clean_ledger_stays_as_it_is() -> None:
    mended = mend_ledgers(_ledgers(), MANIFEST, IDS, bad={})
    assert (mended.ledgers, mended.found, mended.lost) == (_ledgers(), [], {})


def test_manifest_lines_follow_the_files() -> None:
    good, bad, new = MANIFEST[0], MANIFEST[1], MANIFEST[2]
    wrong = msgspec.structs.replace(good, xxh3="wrong", flags=["seen"], stored_at="then")
    facts = {good.path: FileFacts(good), bad.path: FileFacts(None, "damaged"), new.path: FileFacts(new)}
    kept, added = mend_manifests(
        [[wrong, bad, MANIFEST[3], MANIFEST[4]], [good, MANIFEST[3]]], facts, {MANIFEST[4].path}
    )
    assert kept == [[msgspec.structs.replace(good, flags=["seen"], stored_at="then"), MANIFEST[3]], []]
    assert added == [new]


# -- the judges


def test_one_member_that_differs_is_named_with_its_slot() -> None:
    dice = np.random.default_rng(1)
    heads = np.repeat(dice.standard_normal((1, 3, 24)), 9, axis=0)
    heads *= 1 + 1e-4 * dice.standard_normal(heads.shape)
    runs = ["a"] * 9
    assert list(odd_members(heads.astype(np.float16), runs, dtype="float32")) == []
    heads[4, 1] *= 1.2
    ((member, slot, off),) = odd_members(heads.astype(np.float16), runs, dtype="float32")
    assert (member, slot) == (4, 1)
    assert off == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize(("runs", "told"), [("aaaaaabbb", [6, 7, 8]), ("aaabbbaab", [])])
def test_a_large_minority_is_at_fault_only_as_a_run_of_its_own(runs: str, told: list[int]) -> None:
    """A router that is undecided gives two states for one token; a server with other boundaries gives another run."""
    heads = np.ones((9, 2, 24))
    heads[6:] = 2
    assert len(heads) >= MIN_GROUP
    assert [member for member, _, _ in odd_members(heads.astype(np.float16), list(runs), dtype="bfloat16")] == told


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=40))
def test_beginnings_are_grouped_as_a_dict_would_group_them(prompts: list[list[int]]) -> None:
    """Each prompt is a list of hashes, one for each position that it has; its states say whose they are."""
    kept = Beginnings()
    naive: dict[tuple[int, int], list[int]] = {}
    for number, hashes in enumerate(prompts):
        states = np.array([[[number, at]] for at in range(len(hashes))], dtype=np.float16)
        kept.add(2 * number, states, hashes)
        for at, known in enumerate(hashes):
            naive.setdefault((at, known), []).append(number)
    found = list(kept.groups())
    assert [(at, members) for at, members, _ in found] == [
        (at, [2 * number for number in numbers]) for (at, _), numbers in naive.items() if len(numbers) >= MIN_GROUP
    ]
    for at, members, states in found:
        assert states.tolist() == [[[member // 2, at]] for member in members]
    kept.close()


def test_a_group_too_large_is_judged_in_shares_that_hold_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_module, "_MOST", 10)
    kept = Beginnings()
    for number in range(24):
        kept.add(number, np.full((1, 1, 1), number, dtype=np.float16), [7])
    found = [(members, states[:, 0, 0].tolist()) for _, members, states in kept.groups()]
    assert [members for members, _ in found] == [list(range(start, 24, 3)) for start in range(3)]
    assert all(states == members for members, states in found)
    kept.close()


@given(st.integers(0, 2**32 - 1), st.integers(MIN_SAMPLES, 60))
def test_values_that_scatter_are_not_odd_and_one_far_off_is(seed: int, count: int) -> None:
    dice = np.random.default_rng(seed)
    n = dice.integers(8, 400, count)
    values = (0.1 * dice.standard_normal((count, 2)) / np.sqrt(n)[:, None]).astype(np.float32)
    spreads = np.full((count, 2), 0.067, dtype=np.float32)  # of normal values with sigma 0.1
    assert list(odd_values(values, spreads, n.tolist(), floor=0.05)) == []
    at = int(dice.integers(count))
    values[at, 1] += 0.6
    assert [(member, which) for member, which, _ in odd_values(values, spreads, n.tolist(), floor=0.05)] == [(at, 1)]
    assert (
        list(
            odd_values(values[: MIN_SAMPLES - 1], spreads[: MIN_SAMPLES - 1], n[: MIN_SAMPLES - 1].tolist(), floor=0.05)
        )
        == []
    )


def _sketch(ids: Any, states: Any) -> Sketch:
    around = np.concatenate([[-1], ids, [-1]])
    return Sketch(np.asarray(ids), around[:-2], around[2:], states)


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.7))
def test_rows_are_told_by_their_tokens(seed: int, noise: float) -> None:
    dice = np.random.default_rng(seed)
    table = dice.standard_normal((50, 32))
    prompts = [dice.integers(0, 50, 40) for _ in range(12)]
    states = [(table[ids] + noise * dice.standard_normal((40, 32))).astype(np.float32) for ids in prompts]
    means = TokenMeans(32)
    sketches = [_sketch(ids, rows) for ids, rows in zip(prompts, states, strict=True)]
    for sketch in sketches:
        means.measure(sketch)
    for sketch in sketches:
        means.add(sketch)
    matches = [means.match(sketch) for sketch in sketches]
    typical = float(np.median([match.own for match in matches]))
    scatter = 1.4826 * float(np.median([abs(match.own - typical) for match in matches]))
    assert typical > 0.5
    assert [verdict(match, typical, scatter) for match in matches] == [""] * 12
    other = means.match(_sketch(prompts[0], states[1]))
    moved = means.match(_sketch(prompts[0], np.roll(states[0], 1, axis=0)))
    assert verdict(other, typical, scatter) == "other rows"
    assert verdict(moved, typical, scatter) == "shifted"
    assert verdict(other, 0.1, scatter) == ""  # where states do not show their tokens, nothing is said


def test_blocks_do_not_show_in_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(3)
    bits = dice.standard_normal((50, 3, 16)).astype("<f4").view("<u4")
    ids = dice.integers(0, 99, 50)
    found = []
    for block_bytes, cuts in ((1 << 20, [0, 50]), (1 << 8, [0, 50]), (1 << 9, [0, 7, 31, 50])):
        monkeypatch.setattr("hs_client.verify.content._BLOCK_BYTES", block_bytes)
        reader = RecordReader(dtype="float32", slots=3, hidden_size=16)
        for start, stop in itertools.pairwise(cuts):
            reader.add(ids[start:stop], bits[start:stop])
        found.append((reader.facts(), reader.problems, reader.rows))
    for facts, problems, rows in found:
        assert (problems, rows) == ([], 50)
        for name in ("log_rms", "spread", "cosine", "cosine_spread", "heads", "row_hashes", "prefix_hashes"):
            np.testing.assert_array_equal(getattr(facts, name), getattr(found[0][0], name))
        np.testing.assert_array_equal(facts.sketch.states, found[0][0].sketch.states)
