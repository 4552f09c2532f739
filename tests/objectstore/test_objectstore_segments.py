"""Logs made of numbered objects: whatever is written, lost and compacted, a mirror of it has every line, in order."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from hs_formats.errors import UsageError
from hs_formats.jsonl import TailReader
from hs_formats.ledger import Done
from hs_formats.location import ObjectUrl, parse_location
from hs_formats.objectstore.mirror import BooksMirror
from hs_formats.objectstore.segments import Segment, SegmentLog, compactions, covered, reading_order
from memory_store import MemoryStore

SPANS = st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda pair: Segment(pair[0], sum(pair)))


@given(st.sets(SPANS), st.integers(0, 40))
def test_every_number_that_is_there_is_read_once(found: set[Segment], after: int) -> None:
    order = reading_order(found, after)
    there = {number for one in found for number in range(one.first, one.last + 1) if number > after}
    at = after
    read: list[int] = []
    for segment in order:
        assert segment in found
        read += range(max(at + 1, segment.first), segment.last + 1)
        at = segment.last
    assert read == sorted(there)


@given(st.sets(SPANS))
def test_what_is_covered_is_not_needed(found: set[Segment]) -> None:
    rest = found - covered(found)
    numbers = [{n for one in segments for n in range(one.first, one.last + 1)} for segments in (found, rest)]
    assert numbers[0] == numbers[1]
    assert not covered(rest)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=30))
def test_groups_to_compact_are_neighbours_and_small(drawn: list[tuple[bool, int]]) -> None:
    at = 1
    sizes: dict[Segment, int] = {}
    for gap, size in drawn:
        at += gap
        sizes[Segment(at, at)] = size
        at += 1
    for group in compactions(sizes, 100):
        assert len(group) > 1
        assert [one.first for one in group] == list(range(group[0].first, group[-1].last + 1))
        assert sum(sizes[one] for one in group) <= 100


@pytest.mark.parametrize("name", ["1-2.jsonl", "0000000002-0000000001.jsonl", "0000000000-0000000001.jsonl", "x"])
def test_other_names_are_no_segments(name: str) -> None:
    assert Segment.parse(name) is None
    assert Segment.parse(str(Segment(3, 17))) == Segment(3, 17)


@settings(max_examples=60)
@given(st.integers(0, 1 << 30))
def test_a_mirror_follows_writers_that_die_retry_and_compact(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    store = MemoryStore(lose=lambda: chance.random() < 0.2)
    folder = tmp_path_factory.mktemp("mirror")
    mirrors = [BooksMirror(store, folder / "a"), BooksMirror(store, folder / "b")]
    tail: TailReader[Done] = TailReader(folder / "a" / "ledger" / "run.jsonl", Done)
    followed: list[str] = []
    log = SegmentLog(store, "ledger/run")
    written: list[str] = []
    for step in range(chance.randrange(4, 40)):
        lines = [Done(sample_id=f"{step}.{number}", rid="") for number in range(chance.randrange(1, 4))]
        while True:  # as the client and the mover do: the same lines until they are there
            try:
                log.append(lines)
                log.sync()
                break
            except OSError:
                if chance.random() < 0.3:
                    log = SegmentLog(store, "ledger/run")
        written += [line.sample_id for line in lines]
        if chance.random() < 0.15:
            with contextlib.suppress(OSError):
                log.compact()
        for mirror in mirrors:
            if chance.random() < 0.3:
                mirror.refresh(("ledger",))
        followed += [line.sample_id for line in tail.poll()]
    for mirror in [*mirrors, BooksMirror(store, folder / "fresh")]:
        mirror.refresh(("ledger",))
        path = mirror.folder / "ledger" / "run.jsonl"
        found = [line.sample_id for line in TailReader[Done](path, Done).poll()]
        # An answer that was lost before the writer was replaced leaves lines twice, never out of order or not at all.
        assert list(dict.fromkeys(found)) == written
    followed += [line.sample_id for line in tail.poll()]
    assert list(dict.fromkeys(followed)) == written


def test_a_second_writer_is_noticed() -> None:
    store = MemoryStore()
    one, other = SegmentLog(store, "ledger/run"), SegmentLog(store, "ledger/run")
    one.append([Done(sample_id="one", rid="")])
    one.sync()
    other.append([Done(sample_id="other", rid="")])
    with pytest.raises(OSError, match="another process"):
        other.sync()


def test_a_dataset_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    store = MemoryStore()
    mirror = BooksMirror(store, tmp_path / "mirror")
    store.put("dataset.json", b"{}")
    for name in ("one", "two", "three"):
        log = SegmentLog(store, "ledger/run")
        log.append([Done(sample_id=name, rid="")])
        log.sync()
    mirror.refresh()
    store.objects.clear()
    store.put("dataset.json", b"{}")
    log = SegmentLog(store, "ledger/run")
    log.append([Done(sample_id="other", rid="")])
    log.sync()
    mirror.refresh()
    (line,) = TailReader[Done](mirror.folder / "ledger" / "run.jsonl", Done).poll()
    assert line.sample_id == "other"


def test_what_was_fetched_is_not_fetched_again(tmp_path: Path) -> None:
    store = MemoryStore()
    store.put("dataset.json", b"{}")
    store.put("manifest/m.jsonl", b"{}\n")
    log = SegmentLog(store, "ledger/run")
    for number in range(50):
        log.append([Done(sample_id=str(number), rid="")])
        log.sync()
    mirror = BooksMirror(store, tmp_path / "mirror")
    mirror.refresh()
    before = store.reads
    mirror.refresh()
    assert store.reads == before
    log.append([Done(sample_id="new", rid="")])
    log.sync()
    mirror.refresh()
    assert store.reads == before + 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://bucket/a/b/", ("s3", "bucket", "a/b")),
        ("gs://bucket", ("gs", "bucket", "")),
        ("az://bucket//a", ("az", "bucket", "a")),
    ],
)
def test_urls_are_parsed(text: str, parts: tuple[str, str, str]) -> None:
    url = parse_location(text)
    assert isinstance(url, ObjectUrl)
    assert (url.scheme, url.bucket, url.key) == parts
    assert parse_location(str(url)) == url
    assert (url / "c").parent == url


@pytest.mark.parametrize(
    "text", ["http://host/x", "s3://", "s3:///key", "s3://b", "s3://bucket/../x", "s3://bucket/a\nb"]
)
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_location(text)


@pytest.mark.parametrize("text", ["s3:/bucket/x", "s3:bucket/x", "gs:", Path("s3://bucket/x")], ids=str)
def test_a_url_that_lacks_a_slash_is_no_folder(text: str | Path) -> None:
    with pytest.raises(UsageError, match=r"is not like (s3|gs)://bucket/prefix; for a folder of that name give '\./"):
        parse_location(text)


@pytest.mark.parametrize("text", ["/data/set", "set", "./s3:/bucket/x", "s3x:/y", "./a://b"])
def test_paths_stay_paths(text: str) -> None:
    assert parse_location(text) == Path(text)
