"""Prompts files of every kind: packed, cut, shuffled, from a pipe; what a pass over them finds and remembers."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from hs_client.digests import DigestTable
from hs_client.errors import BadPrompts
from hs_client.history import History
from hs_client.input_files import DAMAGED, STDIN, InputFile, open_inputs
from hs_client.limits import Limits
from hs_client.lines import read_lines
from hs_client.plan import Fate, make_plan
from hs_client.prepare import Source
from hs_client.row_cache import Facts, RowCache, cache_file, line_hash
from hs_client.rows import Regenerate, Row, digest, parse_row
from hs_client.settings import dataset_name
from hs_client.survey import SAMPLED_ROWS, Survey
from hs_client.tokenizing import ChatTokenizer, Tokens
from hs_formats.errors import UsageError

_ROWS = [{"id": f"s{at}", "input_ids": [at, 1, 2]} for at in range(50)]
_PLAIN = b"".join(json.dumps(row).encode() + b"\n" for row in _ROWS)


def _zstd(data: bytes, *, frames: int = 1, size: bool = True) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=size, write_checksum=True)
    step = -(-len(data) // frames)
    return b"".join(compressor.compress(data[at : at + step]) for at in range(0, len(data), step))


def _lines(path: Path) -> list[bytes | None]:
    (file,) = open_inputs([path])
    return [line.data for line in read_lines(file)]


@pytest.mark.parametrize(
    "packed",
    [
        _PLAIN,
        gzip.compress(_PLAIN),
        gzip.compress(_PLAIN[:100]) + gzip.compress(_PLAIN[100:]),
        _zstd(_PLAIN),
        _zstd(_PLAIN, frames=7, size=False),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + _zstd(_PLAIN),
        b"\xef\xbb\xbf" + _PLAIN.replace(b"\n", b"\r\n"),
    ],
    ids=["plain", "gzip", "two gzip members", "zstd", "seven zstd frames", "a skippable frame", "BOM and CRLF"],
)
def test_packed_files_give_the_same_lines(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "whatever its name"
    path.write_bytes(packed)
    assert _lines(path) == _PLAIN.splitlines()


@pytest.mark.parametrize("pack", [gzip.compress, _zstd], ids=["gzip", "zstd"])
@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_a_cut_file_is_never_taken_for_a_short_one(tmp_path: Path, pack: Any, keep: float) -> None:
    path = tmp_path / "f"
    data = pack(b"".join(b'{"id": %d, "text": "%d"}\n' % (at, at * 7919) for at in range(20_000)))
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises((OSError, *DAMAGED)):
        list(read_lines(InputFile.of(path)))
    with pytest.raises(BadPrompts, match="cannot read"):
        make_plan(open_inputs([path]), History())


@pytest.mark.parametrize("pack", [gzip.compress, _zstd], ids=["gzip", "zstd"])
def test_a_packed_line_of_any_size_costs_no_memory(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "bomb.jsonl"
    path.write_bytes(pack(bytes(300 << 20)) + pack(b"\n" + _PLAIN))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        found = [(item.number, item.data is None) for item in read_lines(InputFile.of(path), max_bytes=1 << 20)]
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()
    assert found == [(1, True), *((number, False) for number in range(2, 52))]


@pytest.mark.parametrize("pack", [gzip.compress, _zstd], ids=["gzip", "zstd"])
def test_a_damaged_file_ends_with_one_line(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "f"
    data = bytearray(pack(bytes(random.Random(1).randbytes(50_000)).hex().encode() + b"\n"))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(BadPrompts, match="cannot read"):
        make_plan(open_inputs([path]), History())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'[\n {"text": "a"}\n]\n', r"one JSON array: make JSON lines of it with `jq -c '\.\[\]'"),
        (b'\xef\xbb\xbf [{"text": "a"}]', "one JSON array"),
        (b'{\r\n  "text": "a"\r\n}\r\n{\r\n', r"its rows span lines: make JSON lines of them with `jq -c \. FILE"),
        (gzip.compress(b'[{"text": "a"}]', mtime=0), "one JSON array"),
        ('{"text": "a"}\n'.encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"PAR1rest", "a Parquet file"),
        (b"BZh91AY", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
    ],
)
def test_what_is_no_json_lines_is_refused_with_the_way_out(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(BadPrompts, match=reason):
        open_inputs([path])


def test_a_missing_file_a_folder_and_a_twice_named_pipe(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, reason in ((tmp_path / ("x" * 300), "File name too long"), (tmp_path / "loop", "Too many levels")):
        with pytest.raises(BadPrompts, match=reason):
            open_inputs([path])
    with pytest.raises(BadPrompts, match="no such file"):
        open_inputs([tmp_path / "none"])
    with pytest.raises(BadPrompts, match="not a file"):
        open_inputs([tmp_path])
    with pytest.raises(UsageError, match="once only"):
        open_inputs([STDIN, STDIN])
    with pytest.raises(UsageError, match="name the dataset with --dataset"):
        dataset_name("", [STDIN])
    assert dataset_name("", [Path("a/train.jsonl.zst")]) == dataset_name("", [Path("train.json.gz")]) == "train"


@pytest.mark.parametrize("piped", [_PLAIN, gzip.compress(_PLAIN), _zstd(_PLAIN)], ids=["plain", "gzip", "zstd"])
def test_standard_input_is_read_as_often_as_needed(monkeypatch: pytest.MonkeyPatch, piped: bytes) -> None:
    class Pipe:
        buffer = io.BytesIO(piped)

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Pipe())
    plan = make_plan(open_inputs([STDIN]), History())
    assert plan.left == len(_ROWS)
    again = list(plan.again())
    assert [judged.row.sample_id for judged in again if judged.row] == [row["id"] for row in _ROWS]
    assert again[3].where == "-:4"


# -- the table of digests

_KEYS = st.one_of(
    st.sampled_from([bytes(16), b"\1" + bytes(15), bytes(8) + b"\1" + bytes(7)]), st.binary(min_size=16, max_size=16)
)


@given(st.lists(st.tuples(_KEYS, st.integers(0, 2**64 - 1), st.booleans()), max_size=60))
def test_the_table_is_a_dict(steps: list[tuple[bytes, int, bool]]) -> None:
    table, model = DigestTable(), dict[bytes, int]()
    for key, value, overwrite in steps:
        if overwrite:
            table[key] = model[key] = value
        else:
            assert table.setdefault(key, value) == model.setdefault(key, value)
        assert (key in table) == (key in model)
    assert len(table) == len(model)
    assert all(table.get(key) == value for key, value in model.items())
    assert table.get(b"\xff" * 16) == model.get(b"\xff" * 16)


def test_the_table_grows() -> None:
    table = DigestTable()
    keys = [digest(str(at)) for at in range(5_000)]
    for at, key in enumerate(keys):
        table[key] = at
    assert len(table) == len(keys)
    assert [table.get(key) for key in keys] == list(range(len(keys)))
    assert digest("another") not in table


# -- the row cache

_FACTS = st.builds(
    Facts,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.integers(0, 9),
    st.booleans(),
)


@settings(max_examples=30)
@given(st.dictionaries(st.binary(max_size=4), _FACTS, max_size=30), st.randoms(use_true_random=False))
def test_a_cache_finds_every_line_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, facts: dict[bytes, Facts], order: random.Random
) -> None:
    path = tmp_path_factory.mktemp("cache") / "c"
    written = RowCache()
    for line, each in facts.items():
        written.add(line_hash(line), 1 << 20, each)
    written.save(path)
    cache = RowCache.load(path)
    asked = [*facts, b"none of them", *facts]
    order.shuffle(asked)
    kept = len(facts) >= 16  # sixteen lines of a MiB are worth a cache
    assert len(cache) == len(facts) * kept
    assert [cache.get(line_hash(line)) for line in asked] == [facts.get(line) if kept else None for line in asked]


def test_a_cache_keeps_what_was_asked_for_and_takes_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "c"
    facts = {b"%d" % at: Facts(digest(str(at)), at, True, at, False) for at in range(60)}
    lines = list(facts)
    cache = RowCache()
    for line in lines[:40]:
        cache.add(line_hash(line), 1 << 20, facts[line])
    cache.save(path)
    cache = RowCache.load(path)
    for line in reversed(lines[10:40]):
        assert cache.get(line_hash(line)) == facts[line]
    before = path.read_bytes()
    cache.save(path)
    assert path.read_bytes() == before, "nothing new"
    for line in lines[40:]:
        cache.add(line_hash(line), 1 << 20, facts[line])
    cache.save(path)
    cache = RowCache.load(path)
    assert len(cache) == 50
    found = [cache.get(line_hash(line)) for line in lines]
    assert found == [None] * 10 + [facts[line] for line in lines[10:]]
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_cache_or_one_of_other_code_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    written = RowCache()
    for at in range(20):
        written.add(line_hash(b"%d" % at), 1 << 20, Facts(bytes(16), 0, True, 1, False))
    written.save(path)
    whole = path.read_bytes()
    assert len(RowCache.load(path)) == 20
    for at in (3, 20, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert len(RowCache.load(path)) == 0
    path.write_bytes(whole[:-1])
    assert len(RowCache.load(path)) == 0
    path.write_bytes(whole)
    monkeypatch.setattr("hs_client.row_cache._code_version", lambda: b"another version.")
    assert len(RowCache.load(path)) == 0


# -- the plan

_SMALL = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"id": st.integers(0, 6), "input_ids": st.lists(st.integers(0, 3), min_size=1, max_size=3)}
        ),
        st.fixed_dictionaries({"text": st.sampled_from(["a", "b", "c", ""])}),
        st.just({}),
    ),
    max_size=20,
)


def _write(path: Path, rows: Sequence[Any]) -> InputFile:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return InputFile.of(path)


@settings(max_examples=60, deadline=None)
@given(_SMALL, _SMALL, st.randoms(use_true_random=False))
def test_a_cache_never_changes_what_becomes_of_a_row(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], more: list[Any], order: random.Random
) -> None:
    """A first file fills the cache; then it is shuffled and added to, and read with the cache and without."""
    root = tmp_path_factory.mktemp("plan")
    first = make_plan([_write(root / "p.jsonl", before)], History())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hs_client.row_cache._MIN_ROWS", 0)
        first.save_caches(root)
    rows = [*before, *more]
    order.shuffle(rows)
    file = _write(root / "p.jsonl", rows)
    history = History()
    for row in before[::2]:
        if "id" in row:
            history.done.add(digest(str(row["id"])))
    cached, plain = (make_plan([file], history, cache_root=cache) for cache in (root, None))
    good = sum(bool(row.get("text") or row.get("input_ids")) for row in before)
    assert len(RowCache.load(cache_file(root, file.name))) == good
    assert (cached.counts, cached.fates) == (plain.counts, plain.fates)
    assert (cached.survey.tokens, cached.survey.lines) == (plain.survey.tokens, plain.survey.lines)
    assert list(cached.again()) == list(plain.again())


def test_what_was_read_for_other_answers_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hs_client.row_cache._MIN_ROWS", 0)
    file = _write(tmp_path / "p.jsonl", [{"id": "a", "input_ids": [1, 2]}])
    make_plan([file], History(), cache_root=tmp_path).save_caches(tmp_path)
    plan = make_plan([file], History(), cache_root=tmp_path, regenerate="missing", variants=3)
    assert (plan.left, plan.asks) == (3, 3)


def test_done_rows_of_a_cached_file_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(tmp_path / "p.jsonl", _ROWS)
    monkeypatch.setattr("hs_client.row_cache._MIN_ROWS", 0)
    make_plan([file], History()).save_caches(tmp_path)
    history = History()
    for row in _ROWS[:-2]:
        history.done.add(digest(row["id"]))  # type: ignore[arg-type]
    parsed: list[bytes] = []

    def counted(line: bytes, regenerate: Regenerate) -> Row:
        parsed.append(line)
        return parse_row(line, regenerate)

    monkeypatch.setattr("hs_client.plan.parse_row", counted)
    plan = make_plan([file], history, cache_root=tmp_path)
    assert (plan.counts[Fate.DONE], plan.left, parsed) == (48, 2, [])
    assert [judged.row.sample_id for judged in plan.again() if judged.row] == ["s48", "s49"]
    assert len(parsed) == 2


def test_only_rows_to_send_are_tokenised_and_the_tokenizer_is_loaded_for_them_alone(tmp_path: Path) -> None:
    rows = [{"id": f"t{at}", "text": f"text {at}"} for at in range(200)]
    file = _write(tmp_path / "p.jsonl", rows)
    tokenised: list[str] = []

    class Counting(ChatTokenizer):
        def __init__(self) -> None:
            pass

        def text(self, text: str) -> Tokens:
            tokenised.append(text)
            return Tokens([1, 2], [(0, 2)])

        def take_notes(self) -> set[str]:
            return set()

    history = History()
    for row in rows[:190]:
        history.done.add(digest(row["id"]))
    source = Source(make_plan([file], history), limits=Limits(100), load=Counting)
    sent = [sample.sample_id for samples, _ in iter(source.next_batch, None) for sample in samples]
    assert sent == [row["id"] for row in rows[190:]]
    assert tokenised == [row["text"] for row in rows[190:]]

    def load() -> ChatTokenizer:
        raise AssertionError("nothing is to be tokenised")

    for row in rows[190:]:
        history.done.add(digest(row["id"]))
    source = Source(make_plan([file], history), limits=Limits(100), load=load)
    assert source.volume().rows == 0
    assert source.next_batch() is None


def test_a_long_first_pass_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(tmp_path / "p.jsonl", [{"id": at, "input_ids": [1]} for at in range(2500)])
    monkeypatch.setattr("hs_client.plan._SAY_S", 0.0)
    said: list[str] = []
    make_plan([file], History(), say=said.append)
    assert said == ["reading    1,024 rows so far", "reading    2,048 rows so far"]


def test_a_file_that_changes_between_the_passes_is_refused(tmp_path: Path) -> None:
    file = _write(tmp_path / "p.jsonl", _ROWS)
    plan = make_plan([file], History())
    _write(tmp_path / "p.jsonl", [*_ROWS, {"id": "new", "input_ids": [1]}])
    with pytest.raises(BadPrompts, match="it changed while it was read"):
        list(plan.again())


def test_rows_that_are_appended_in_the_second_pass_are_told_and_the_others_read(tmp_path: Path) -> None:
    file = _write(tmp_path / "p.jsonl", [{"id": str(at), "input_ids": [1]} for at in range(5)])
    rows = make_plan([file], History()).again()
    seen = [next(rows).where]
    with file.path.open("a") as more:
        more.write('{"id": "late", "input_ids": [1]}\n')
    with pytest.raises(BadPrompts, match="it changed while it was read"):
        seen.extend(judged.where for judged in rows)
    assert [where.rpartition(":")[2] for where in seen] == ["1", "2", "3", "4", "5"]


def test_files_without_a_row_are_known(tmp_path: Path) -> None:
    (tmp_path / "blank.jsonl").write_text("\n \n")
    empty = _write(tmp_path / "empty.jsonl", [])
    plan = make_plan([empty, _write(tmp_path / "p.jsonl", _ROWS), InputFile.of(tmp_path / "blank.jsonl")], History())
    assert plan.empty == [str(tmp_path / "empty.jsonl"), str(tmp_path / "blank.jsonl")]


def test_rows_that_were_too_long_are_sent_when_more_is_allowed(tmp_path: Path) -> None:
    file = _write(tmp_path / "p.jsonl", [{"id": "a", "input_ids": [1] * 30}])
    for limits, sent in (
        (Limits(31), True),
        (Limits(30), False),
        (Limits(30, truncate=True), True),
        (Limits(100, max_length=30), True),
        (Limits(100, max_length=29), False),
        (None, False),
    ):
        history = History(rejected={digest("a"): "too long"}, short={digest("a"): 30})
        assert make_plan([file], history, limits=limits).left == sent, limits


# -- how much it is


def test_rows_of_ids_are_counted_and_those_of_text_estimated() -> None:
    survey = Survey(Limits(11))
    for n in (3, 10, 11, 400):
        survey.add(Facts(bytes(16), 0, True, n, False), b"")
    volume = survey.volume(lambda line: 0)
    assert (volume.rows, volume.tokens, volume.longest, volume.too_long, volume.sampled) == (2, 13, 10, 2, 0)
    many = Survey(Limits(1000))
    for at in range(10 * SAMPLED_ROWS):
        many.add(Facts(bytes(16), 0, True, 0, True), b"x" * (1 + at % 100))
    volume = many.volume(lambda line: 2 * len(line))
    assert volume.sampled == SAMPLED_ROWS
    assert volume.tokens == 2 * many.text_bytes, "tokens follow from bytes"
    assert volume.limited(128).tokens == pytest.approx(volume.tokens / 10, rel=0.01)


def test_few_rows_of_text_are_counted() -> None:
    survey = Survey(None)
    for at in range(5):
        survey.add(Facts(bytes(16), 0, True, 0, True), b"x" * (at + 1))
    volume = survey.volume(lambda line: len(line) if len(line) > 1 else 0)
    assert (volume.rows, volume.tokens, volume.too_long, volume.sampled) == (4, 14, 1, 0)


def test_a_plan_knows_truncated_rows_by_what_is_kept() -> None:
    survey = Survey(Limits(11, truncate=True))
    survey.add(Facts(bytes(16), 0, True, 400, False), b"")
    assert survey.volume(lambda line: 0).tokens == 10
