from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from hs_formats import jsonl
from hs_formats.errors import FormatError
from hs_formats.jsonl import AppendLog, TailReader, crc_fits, encode_line
from hs_formats.ledger import Done, Failed, Intent, LedgerLine, Rejected, RunStarted, iter_ledger, read_ledger
from hs_formats.manifest import ManifestLine, ManifestReader

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


class Line(msgspec.Struct, frozen=True):
    number: int
    text: str = ""


def _append(path: Path, *lines: Line) -> None:
    with AppendLog(path) as log:
        log.append(lines)
        log.sync()


@given(st.lists(st.lists(st.builds(Line, st.integers(-(2**63), 2**63 - 1), TEXT), max_size=4), max_size=5))
def test_what_is_appended_is_read(tmp_path_factory: pytest.TempPathFactory, batches: list[list[Line]]) -> None:
    path = tmp_path_factory.getbasetemp() / "log.jsonl"
    path.unlink(missing_ok=True)
    tail: TailReader[Line] = TailReader(path, Line)
    assert tail.poll() == []
    _append(path)
    for batch in batches:
        _append(path, *batch)
        assert tail.poll() == batch
    assert tail.bad == 0
    assert path.read_bytes().count(b"\n") == sum(map(len, batches))


def test_a_line_torn_at_any_byte_is_closed_before_the_next_append(tmp_path: Path) -> None:
    whole = msgspec.json.encode(Line(2, "é\u2028\u0085")) + b"\n"
    for cut in range(len(whole) + 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(b'{"number":1}\n' + whole[:cut])
        tail: TailReader[Line] = TailReader(path, Line)
        assert tail.poll() == [Line(1)] + ([Line(2, "é\u2028\u0085")] if cut == len(whole) else [])
        _append(path, Line(3))
        # All but its newline was there: then the line counts, once that is.
        rescued = [Line(2, "é\u2028\u0085")] if cut == len(whole) - 1 else []
        assert tail.poll() == [*rescued, Line(3)]
        assert tail.bad == (0 < cut < len(whole) - 1)


def test_a_failed_append_is_closed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"

    def torn(fd: int, pieces: list[bytes]) -> int:
        os.write(fd, pieces[0][:5])
        raise OSError("No space left")

    with AppendLog(path) as log:
        log.append([Line(1)])
        with monkeypatch.context() as patch:
            patch.setattr(jsonl, "write_all", torn)
            with pytest.raises(OSError, match="No space"):
                log.append([Line(2)])
        log.append([Line(2)])
        log.append([])
        log.append([Line(3)])
    tail: TailReader[Line] = TailReader(path, Line)
    assert tail.poll() == [Line(1), Line(2), Line(3)]
    assert tail.bad == 1


def test_a_reader_beside_a_writer_sees_each_line_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail: TailReader[Line] = TailReader(path, Line)

    def write() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number in range(400):
            data = msgspec.json.encode(Line(number, "x" * (number % 90))) + b"\n"
            os.write(fd, data[:7])
            os.write(fd, data[7:])
        os.close(fd)

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    while writer.is_alive():
        seen += [line.number for line in tail.poll()]
    writer.join()
    seen += [line.number for line in tail.poll()]
    assert seen == list(range(400))
    assert tail.bad == 0


def test_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 7)
    _append(tmp_path / "log.jsonl", *(Line(number, "y" * number) for number in range(30)))
    tail: TailReader[Line] = TailReader(tmp_path / "log.jsonl", Line)
    assert [line.number for line in tail.poll()] == list(range(30))


@pytest.mark.parametrize(
    "junk", [b"{", b"null", b"\xff\xfe", b'{"number":"1"}', b"\0" * 50, b"[" * 9000, b'{"text":"a"}']
)
def test_junk_is_counted_and_skipped(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"number":1}\n\n  \n' + junk + b'\n{"number":2,"later":true}\r\n')
    tail: TailReader[Line] = TailReader(path, Line)
    assert tail.poll() == [Line(1), Line(2)]
    assert tail.bad == 1


def test_unwanted_lines_cost_no_decoding(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"number":1}\nnonsense\n{"number":3}\n')
    tail: TailReader[Line] = TailReader(path, Line, keep=lambda raw: b"3" in raw)
    assert tail.poll() == [Line(3)]
    assert tail.bad == 0


def test_a_lone_surrogate_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "log.jsonl") as log, pytest.raises(FormatError, match="cannot be written"):
        log.append([Line(1), Line(2, "\ud83d")])
    assert (tmp_path / "log.jsonl").read_bytes() == b""


LEDGER: list[LedgerLine] = [
    RunStarted(run="0000abcd", started_at="2026-01-02T03:04:05Z", inputs=["p.jsonl"], servers=["u"], version="0.1.0"),
    Intent(sample_id="a", rid="hs-0000abcd-00000000-00", n=4, ids_xxh3="00", mask=[(1, 3)], row="p.jsonl:1"),
    Done(sample_id="a", rid="hs-0000abcd-00000000-00", finish_reason="length", prompt_tokens=4, cached_tokens=0),
    Done(sample_id="b", rid="hs-0000abcd-00000001-00", adopted=True),
    Failed(sample_id="c", rid="hs-0000abcd-00000002-00", kind="silent", reason="hook silent"),
    Rejected(sample_id="", row="p.jsonl:5", reason="not JSON"),
]


def test_every_ledger_line_round_trips_and_carries_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with AppendLog(path) as log:
        log.append(LEDGER)
    with path.open("ab") as file:
        file.write(b'{"type":"later","x":1}\n{"type":"done","sample_id":"torn"')
    assert read_ledger(path) == LEDGER
    assert list(iter_ledger(path)) == LEDGER
    kinds = [msgspec.json.decode(raw)["type"] for raw in path.read_bytes().splitlines()[:6]]
    assert kinds == ["run", "intent", "done", "done", "failed", "rejected"]


def _manifest_line(row: int, **changes: object) -> ManifestLine:
    fields: dict[str, object] = {
        "part": f"hs-0000abcd-{row:08d}-00.t0000000-0000001of0000001.r00.pt",
        "status": "stored",
        "path": "data/x",
        "raw_bytes": 1,
        "stored_bytes": 1,
        "codec": "none",
    }
    return msgspec.convert(fields | changes, ManifestLine)


def test_the_first_line_of_a_part_wins_over_all_manifests(tmp_path: Path) -> None:
    reader = ManifestReader(tmp_path)
    assert reader.poll() == []
    with AppendLog(tmp_path / "a.jsonl") as one, AppendLog(tmp_path / "b.jsonl") as other:
        one.append([_manifest_line(1), _manifest_line(1, status="quarantined", reason="late"), _manifest_line(2)])
        other.append([_manifest_line(2, path="elsewhere"), _manifest_line(3)])
        assert [(line.part[12:20], line.path) for line in reader.poll()] == [
            ("00000001", "data/x"),
            ("00000002", "data/x"),
            ("00000003", "data/x"),
        ]
        other.append([_manifest_line(1), _manifest_line(4), msgspec.structs.replace(_manifest_line(5), part="../x")])
        assert [line.part[12:20] for line in reader.poll()] == ["00000004"]
        assert reader.poll() == []
    (tmp_path / "c.jsonl").write_bytes(b'{"part":1}\n')
    assert reader.poll() == []
    assert reader.bad == 1


# -- the checksum of a line


@given(TEXT, st.integers(0, 9), st.data())
def test_any_changed_byte_of_a_line_shows(text: str, number: int, data: Any) -> None:
    line = encode_line(Line(number, text))
    assert crc_fits(line)
    assert msgspec.json.decode(line, type=Line) == Line(number, text)
    at = data.draw(st.integers(0, len(line) - 2))
    changed = bytearray(line)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert not crc_fits(bytes(changed))


def test_a_line_without_checksum_is_told_from_a_wrong_one() -> None:
    assert crc_fits(b'{"number":1}\n') is None
    assert crc_fits(b'{"number":1,"crc":"00000000"}\n') is False
