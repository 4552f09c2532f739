"""Faults of bytes and books: they happened to a dataset that was right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from fault_list import RUN, Fault, collected_in, pick
from hs_formats.dataset import DatasetPaths
from hs_formats.hashing import ids_xxh3
from hs_formats.jsonl import encode_line
from hs_formats.ledger import Done, Intent, LedgerLine, read_ledger
from hs_formats.manifest import ManifestLine, ManifestReader
from hs_formats.names import PartName, Rid
from part_factory import Record
from real_sets import write_real_set

__all__ = ["STORED_FAULTS"]

STORED_FAULTS: list[Fault] = []

fault = collected_in(STORED_FAULTS)

# -- bytes


def _files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "data").rglob("*.pt*"))


def _relative(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


def _bytes(*kinds: str) -> Callable[[Callable[[bytes], bytes]], Any]:
    def keep(change: Callable[[bytes], bytes]) -> Any:
        def inject(root: Path, records: Sequence[Record]) -> str:
            path = _files(root)[9]
            path.write_bytes(change(path.read_bytes()))
            return _relative(root, path)

        fault(*kinds, name=change.__name__.strip("_").replace("_", " "))(inject)
        return change

    return keep


def _flip(data: bytes, at: int, bit: int = 4) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


@_bytes("damaged file")
def _file_cut_in_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@_bytes("damaged file")
def _last_byte_cut_off(data: bytes) -> bytes:
    return data[:-1]


@_bytes("damaged file")
def _empty_file(data: bytes) -> bytes:
    return b""


@_bytes("damaged file")
def _byte_flipped_in_the_payload(data: bytes) -> bytes:
    return _flip(data, len(data) // 2)


@_bytes("damaged file")
def _byte_flipped_in_the_header(data: bytes) -> bytes:
    return _flip(data, 1)


@_bytes("damaged file")
def _byte_flipped_in_the_checksum(data: bytes) -> bytes:
    return _flip(data, len(data) - 2)


@_bytes("damaged file")
def _bytes_appended(data: bytes) -> bytes:
    return data + b"\0\0\0\0"


@_bytes("damaged file")
def _a_page_of_zeros(data: bytes) -> bytes:
    return data[:4096] + bytes(4096) + data[8192:]


@fault("damaged file", "no whole record", "missing file")
def _missing_file(root: Path, records: Sequence[Record]) -> str:
    path = _files(root)[9]
    path.unlink()
    return _relative(root, path)


@fault("missing file")
def _missing_folder(root: Path, records: Sequence[Record]) -> str:
    path = _files(root)[9]
    shutil.rmtree(path.parent)
    return _relative(root, path)


@fault("foreign file")
def _foreign_file(root: Path, records: Sequence[Record]) -> str:
    path = _files(root)[9].with_name("notes.txt")
    path.write_text("mine")
    return _relative(root, path)


@fault("foreign file")
def _file_in_the_wrong_folder(root: Path, records: Sequence[Record]) -> str:
    path = _files(root)[9]
    folder = path.parent.with_name("000007")
    folder.mkdir()
    return _relative(root, path.rename(folder / path.name))


@fault("foreign file")
def _symbolic_link_instead_of_a_file(root: Path, records: Sequence[Record]) -> str:
    path = _files(root)[9]
    target = path.rename(root / "elsewhere")
    path.symlink_to(target)
    return _relative(root, path)


@fault("no manifest line")
def _extra_part_without_a_line(root: Path, records: Sequence[Record]) -> str:
    path = _files(root)[9]
    new = path.with_name(path.name.replace("-00.t", "-01.t"))
    new.write_bytes(path.read_bytes())
    return _relative(root, new)


@fault("no manifest line")
def _second_copy_of_another_codec(root: Path, records: Sequence[Record]) -> str:
    from hs_formats.stored import read_stored

    path = _files(root)[9]
    new = path.with_name(path.name.removesuffix("".join(path.suffixes[-2:])) + ".pt")
    new.write_bytes(read_stored(path))
    return _relative(root, new)


@fault("damaged file")
def _two_files_exchanged(root: Path, records: Sequence[Record]) -> str:
    one, other = _files(root)[9], _files(root)[12]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return _relative(root, one)


@fault("unlike its manifest line")
def _file_replaced_by_a_whole_other_one(root: Path, records: Sequence[Record]) -> str:
    """As if a part of this name was captured twice: all of it is sound, and it is not what the manifest describes."""
    at = pick(records)
    other = root.with_name("other")
    write_real_set(other, [replace(records[at], states=records[at].states + 1)])
    path = _files(other)[0]
    target = root / path.relative_to(other)
    target.write_bytes(path.read_bytes())
    return _relative(root, target)


# -- the manifest


def _manifest(root: Path) -> Path:
    (path,) = (root / "manifest").glob("*.jsonl")
    return path


def _manifest_lines(root: Path) -> list[ManifestLine]:
    return ManifestReader(root / "manifest").poll()


def _edit_manifest(name: str, kinds: Sequence[str], edit: Callable[[list[ManifestLine]], str]) -> None:
    """Lines changed and given right checksums: as if they had been written so."""

    def inject(root: Path, records: Sequence[Record]) -> str:
        lines = _manifest_lines(root)
        named = edit(lines)
        _manifest(root).write_bytes(b"".join(map(encode_line, lines)))
        return named

    fault(*kinds, name=name)(inject)


def _with(line: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(line, **changes)


def _change_line(**changes: Any) -> Callable[[list[ManifestLine]], str]:
    def edit(lines: list[ManifestLine]) -> str:
        lines[9] = _with(lines[9], **changes)
        return lines[9].part.removesuffix(".pt")

    return edit


def _drop_line(lines: list[ManifestLine]) -> str:
    return lines.pop(9).path


def _contradict(lines: list[ManifestLine]) -> str:
    lines.append(_with(lines[9], xxh3="00" * 16))
    return lines[9].part


_UNLIKE = ("unlike its manifest line",)
_edit_manifest("manifest line lost", ("no manifest line",), _drop_line)
_edit_manifest("manifest with another checksum of the file", _UNLIKE, _change_line(xxh3="00" * 16))
_edit_manifest("manifest with another checksum of the rows", _UNLIKE, _change_line(rows_xxh3="00" * 16))
_edit_manifest("manifest with another checksum of the ids", (*_UNLIKE, "other ids"), _change_line(ids_xxh3="00" * 16))
_edit_manifest("manifest with another size", _UNLIKE, _change_line(stored_bytes=1))
_edit_manifest("manifest with another codec", ("wrong manifest line",), _change_line(codec="none"))
_edit_manifest("manifest with another path", ("wrong manifest line",), _change_line(path="data/elsewhere.pt"))
_edit_manifest("manifest path out of the dataset", ("wrong manifest line",), _change_line(path="../../etc/passwd"))
_edit_manifest("manifest lines that contradict each other", ("contradicting lines",), _contradict)
_edit_manifest("manifest with another rank", (*_UNLIKE, "no whole record"), _change_line(expected_ranks=[0, 1]))


def _flip_line(folder: str, number: int, place: float) -> Callable[[Path, Sequence[Record]], str]:
    def inject(root: Path, records: Sequence[Record]) -> str:
        (path,) = (root / folder).glob("*.jsonl")
        lines = path.read_bytes().split(b"\n")
        at = int(place * (len(lines[number]) - 1))
        lines[number] = _flip(lines[number], at, 1)
        path.write_bytes(b"\n".join(lines))
        return f"{folder}/{path.name}:{number % len(lines) + 1}"

    return inject


for _place in (0.0, 0.1, 0.5, 0.8, 0.98):
    fault("damaged line", name=f"byte flipped in the manifest at {_place}")(_flip_line("manifest", 9, _place))


@fault("no manifest line")
def _manifest_missing(root: Path, records: Sequence[Record]) -> str:
    _manifest(root).unlink()
    return _relative(root, _files(root)[0])


@fault("damaged line", "no manifest line")
def _manifest_cut(root: Path, records: Sequence[Record]) -> str:
    path = _manifest(root)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return _relative(root, _files(root)[-1])


# -- the ledger


def _ledger(root: Path) -> Path:
    return DatasetPaths(root).ledger_file(RUN)


def _edit_ledger(name: str, kinds: Sequence[str], edit: Callable[[list[LedgerLine]], str]) -> None:
    def inject(root: Path, records: Sequence[Record]) -> str:
        lines = read_ledger(_ledger(root))
        named = edit(lines)
        _ledger(root).write_bytes(b"".join(map(encode_line, lines)))
        return named

    fault(*kinds, name=name)(inject)


def _intent(lines: list[LedgerLine]) -> tuple[int, Intent]:
    return next((at, line) for at, line in enumerate(lines) if isinstance(line, Intent) and line.n > 40)


def _change_intent(**changes: Any) -> Callable[[list[LedgerLine]], str]:
    def edit(lines: list[LedgerLine]) -> str:
        at, line = _intent(lines)
        lines[at] = _with(line, **{key: value(line) for key, value in changes.items()})
        return line.sample_id

    return edit


def _drop_intent(lines: list[LedgerLine]) -> str:
    at, line = _intent(lines)
    lines.pop(at)
    return line.sample_id


def _done_without_intent(lines: list[LedgerLine]) -> str:
    lines.append(Done(sample_id="ghost", rid=f"hs-{RUN}-00009999-00"))
    return "ghost"


def _done_for_two(lines: list[LedgerLine]) -> str:
    _, line = _intent(lines)
    lines.append(Done(sample_id="twin", rid=line.rid))
    return line.sample_id


def _intent_of_another_run(lines: list[LedgerLine]) -> str:
    _, line = _intent(lines)
    lines.append(_with(line, rid=f"hs-11112222-{Rid.parse(line.rid).row:08d}-00"))
    return "hs-11112222"


_BROKEN = ("no whole record",)
_edit_ledger("mask shorter than the ids", _BROKEN, _change_intent(n=lambda line: line.n - 3))
_edit_ledger("mask longer than the ids", _BROKEN, _change_intent(mask=lambda line: [(0, line.n + 1)]))
_edit_ledger("mask spans that overlap", _BROKEN, _change_intent(mask=lambda line: [(0, 9), (5, 12)]))
_edit_ledger(
    "ledger with the ids of another prompt", ("other ids",), _change_intent(ids_xxh3=lambda line: ids_xxh3([1, 2]))
)
_edit_ledger("intent under another sample id", _BROKEN, _change_intent(sample_id=lambda line: "somebody else"))
_edit_ledger("intent lost", _BROKEN, _drop_intent)
_edit_ledger("done line for an unknown request", _BROKEN, _done_without_intent)
_edit_ledger("one request done for two samples", ("shared record",), _done_for_two)
_edit_ledger("intent in the ledger of another run", ("wrong ledger line",), _intent_of_another_run)

for _place in (0.0, 0.3, 0.6, 0.9, 0.98):
    fault("damaged line", name=f"byte flipped in an intent at {_place}")(_flip_line("ledger", 9, _place))
fault("damaged line", name="byte flipped in a done line")(_flip_line("ledger", -4, 0.5))


@fault("unknown request")
def _ledger_missing(root: Path, records: Sequence[Record]) -> str:
    _ledger(root).unlink()
    return str(PartName.parse(_manifest_lines(root)[0].part).rid)


# -- dataset.json


def _edit_info(name: str, **changes: Any) -> None:
    def inject(root: Path, records: Sequence[Record]) -> str:
        path = DatasetPaths(root).info
        data = msgspec.json.decode(path.read_bytes())
        path.write_bytes(msgspec.json.encode({**data, **changes}))
        return _relative(root, _files(root)[9])

    fault("unlike dataset.json", name=name)(inject)


_edit_info("dataset.json with other boundaries", boundaries=[2, 4, 6])
_edit_info("dataset.json with another hidden size", hidden_size=64)
_edit_info("dataset.json with another dtype", dtype="float16")
_edit_info("dataset.json of another model", config_hash="0000")
