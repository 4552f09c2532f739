from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.index import DatasetIndex, IndexedSample
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.reader import HiddenStateDataset
from hs_formats.verified import VerifiedSet, sample_digest
from part_factory import random_record, write_dataset

RECORDS = [random_record(row, 3 + row, cuts=(2,)) for row in range(4)]


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, RECORDS)
    samples = DatasetIndex.load(paths).samples
    assert len(VerifiedSet.read(paths)) == 0
    chosen = [samples["s0"], samples["s2"]]
    VerifiedSet.of(chosen, verified_at="2026-01-02T03:04:05Z", checks=["a", "b"]).write(paths)
    found = VerifiedSet.read(paths)
    assert (len(found), found.verified_at, found.checks) == (2, "2026-01-02T03:04:05Z", ("a", "b"))
    assert [name for name, sample in samples.items() if sample in found] == ["s0", "s2"]
    assert found.missing(samples.values()) == ["s1", "s3"]
    data = HiddenStateDataset(tmp_path, verified_only=True)
    assert data.sample_ids == ("s0", "s2")
    assert data[1].sample_id == "s2"
    VerifiedSet().write(paths)
    assert len(HiddenStateDataset(tmp_path, verified_only=True)) == 0


def _line(start: int, stop: int) -> ManifestLine:
    return ManifestLine(
        part=str(PartName(Rid("0000abcd", 1, 0), start, stop, 5, 0)),
        status="stored",
        path="data/x",
        raw_bytes=1,
        stored_bytes=1,
        codec="none",
        xxh3="aa",
    )


SAMPLE = IndexedSample("s", Rid("0000abcd", 1, 0), 5, "bb", ((0, 2),), (_line(0, 3), _line(3, 5)))


@pytest.mark.parametrize(
    "changed",
    [
        replace(SAMPLE, sample_id="t"),
        replace(SAMPLE, rid=Rid("0000abcd", 1, 1)),
        replace(SAMPLE, n=6),
        replace(SAMPLE, ids_xxh3="bc"),
        replace(SAMPLE, mask_spans=((0, 3),)),
        replace(SAMPLE, mask_spans=()),
        replace(SAMPLE, parts=SAMPLE.parts[:1]),
        replace(SAMPLE, parts=(_line(0, 2), _line(3, 5))),
    ],
)
def test_a_changed_sample_is_not_verified(changed: IndexedSample) -> None:
    verified = VerifiedSet.of([SAMPLE])
    assert SAMPLE in verified
    assert changed not in verified


@given(st.sets(st.integers(0, 2**64 - 1)), st.integers(0, 2**64 - 1))
def test_membership_is_that_of_the_digests(digests: set[int], other: int) -> None:
    own = sample_digest(SAMPLE)
    assert len(VerifiedSet(digests)) == len(digests)
    assert (SAMPLE in VerifiedSet(digests)) == (own in digests)
    assert SAMPLE in VerifiedSet({*digests, own, other})


def test_a_damaged_file_is_named_and_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, RECORDS)
    VerifiedSet.of(DatasetIndex.load(paths).samples.values()).write(paths)
    whole = paths.verified.read_bytes()
    text = json.loads(whole)
    for damaged in (
        b"",
        whole[: len(whole) // 2],
        json.dumps({**text, "count": 3}).encode(),
        json.dumps({**text, "samples": "A" + text["samples"][1:]}).encode(),
        json.dumps({**text, "samples": "?"}).encode(),
        json.dumps({**text, "version": 2}).encode(),
        json.dumps({key: value for key, value in text.items() if key != "samples"}).encode(),
    ):
        paths.verified.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"verified\.json"):
            VerifiedSet.read(DatasetPaths(tmp_path))
    paths.verified.write_bytes(whole)
    assert len(VerifiedSet.read(paths)) == 4
