"""docs/formats is precise enough to read a dataset with: this reader knows the prose and none of the project's code."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
import zstandard

from golden_files import CLIENT, GOLDEN, IDS, LEDGER, MANIFEST, MARKER, MOVER, NAME, STATES
from hs_formats.index import DatasetIndex
from hs_formats.verified import VerifiedSet
from part_factory import random_record, write_dataset

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _read_part(data: bytes) -> tuple[dict[str, Any], list[int], torch.Tensor]:
    _, _, _, _, count, size, at, _ = struct.unpack("<IHHHHIIH", data[-22:])
    header: dict[str, Any] = {}
    position = at
    for _ in range(count):
        fields = struct.unpack_from("<IHHHHHHIIIHHHHHII", data, position)
        length, name_bytes, extra_bytes, local_at = fields[9], fields[10], fields[11], fields[16]
        name = data[position + 46 : position + 46 + name_bytes].decode()
        position += 46 + name_bytes + extra_bytes
        if name == "part/hs.json":
            start = local_at + 30 + sum(struct.unpack_from("<HH", data, local_at + 26))
            header = json.loads(data[start : start + length])
    assert position == at + size == len(data) - 22
    tensors = header.pop("tensors")
    ids, states = tensors["input_ids"], tensors["hidden_states"]
    assert ids["offset"] % 64 == states["offset"] % 64 == 0
    assert states["dtype"] == "bfloat16"
    bits = struct.unpack_from(f"<{states['nbytes'] // 2}h", data, states["offset"])
    return (
        header,
        list(struct.unpack_from(f"<{ids['shape'][0]}q", data, ids["offset"])),
        torch.tensor(bits, dtype=torch.int16).view(torch.bfloat16).view(states["shape"]),
    )


def test_the_part_as_the_prose_has_it() -> None:
    meta, ids, states = _read_part((GOLDEN / str(NAME)).read_bytes())
    assert (meta["format"], meta["version"], meta["last_state"]) == ("hs-part", 1, "post_norm")
    assert ids == IDS
    assert torch.equal(states.view(torch.int16), STATES.view(torch.int16))


def test_the_stored_part_as_the_prose_has_it() -> None:
    data = (GOLDEN / f"{NAME}.zst").read_bytes()
    content = zstandard.ZstdDecompressor().decompress(data)
    assert len(content) == json.loads((GOLDEN / "manifest.jsonl").read_text().splitlines()[0])["raw_bytes"]
    assert _read_part(content)[1] == IDS


@pytest.mark.parametrize(("name", "expected"), [("mover.json", MOVER), ("client.json", CLIENT)])
def test_the_fixed_record_as_the_prose_has_it(name: str, expected: Any) -> None:
    data = (GOLDEN / name).read_bytes()
    assert len(data) == 8192
    found: dict[int, Any] = {}
    for at in (0, 4096):
        match = re.match(rb"hs1 ([0-9]{12}) ([0-9]{6}) ([0-9a-f]{8})\n", data[at:])
        if match is None:
            continue
        payload = data[at + match.end() : at + match.end() + int(match[2])]
        if zlib.crc32(match[1] + b" " + match[2] + payload) == int(match[3], 16):
            assert at == 4096 * (int(match[1]) % 2)
            found[int(match[1])] = json.loads(payload)
    assert found[max(found)] == {key: getattr(expected, key) for key in expected.__dataclass_fields__}


def test_the_failure_ring_as_the_prose_has_it() -> None:
    data = (GOLDEN / "failed-4242-r0").read_bytes()
    texts: list[tuple[int, str]] = []
    for at in range(0, len(data), 256):
        number, checksum, text = data[at : at + 12], data[at + 13 : at + 21], data[at + 22 : at + 255].rstrip(b" ")
        assert zlib.crc32(number + b" " + text) == int(checksum, 16)
        texts.append((int(number), text.decode()))
    assert texts[0] == (5, "hs-failures 1 3 00000000")
    assert [1 + (number - 1) % 3 for number, _ in texts[1:]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("page", "objects"),
    [
        ("manifest.md", [json.loads(line) for line in (GOLDEN / "manifest.jsonl").read_text().split("\n")[:-1]]),
        ("ledger.md", [json.loads(line) for line in (GOLDEN / "ledger.jsonl").read_text().split("\n")[:-1]]),
        ("timeline.md", [json.loads(line) for line in (GOLDEN / "timeline.jsonl").read_text().split("\n")[:-1]]),
        ("responses.md", [json.loads(line) for line in (GOLDEN / "responses.jsonl").read_text().split("\n")[:-1]]),
        ("dataset.md", [json.loads((GOLDEN / "dataset.json").read_text())]),
        ("control.md", [json.loads((GOLDEN / "server-4242-r0.json").read_text())]),
        ("control.md", [dict.fromkeys(MOVER.__dataclass_fields__, 0), json.loads((GOLDEN / "run.json").read_text())]),
        ("control.md", [dict.fromkeys(CLIENT.__dataclass_fields__, 0)]),
        ("part.md", [_read_part((GOLDEN / str(NAME)).read_bytes())[0]]),
    ],
)
def test_every_key_is_in_the_prose(page: str, objects: list[dict[str, Any]]) -> None:
    named = set(re.findall(r"`([a-z_0-9]+)`", (DOCS / "formats" / page).read_text()))
    assert objects
    assert {key for item in objects for key in item} <= named


def test_the_marks_as_the_prose_has_them(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, [random_record(row, 5, cuts=(2,), mask=((0, 1), (3, 5))) for row in range(3)])
    samples = DatasetIndex.load(paths).samples
    VerifiedSet.of([samples["s0"], samples["s2"]], verified_at="2026-01-02T03:04:05Z", checks=["a"]).write(paths)
    marks = json.loads((tmp_path / "verified.json").read_text())
    assert set(marks) <= set(re.findall(r"`([a-z_0-9]+)`", (DOCS / "formats" / "dataset.md").read_text()))
    raw = base64.b64decode(marks["samples"])
    assert (marks["count"], marks["xxh3"]) == (2, xxhash.xxh3_128_hexdigest(raw))
    expected = []
    for sample in (samples["s0"], samples["s2"]):
        mask = [[0, 1], [3, 5]]
        parts = [[line.part, line.xxh3] for line in sample.parts]
        known = [sample.sample_id, str(sample.rid), 5, sample.ids_xxh3, mask, parts]
        expected.append(xxhash.xxh3_64_intdigest(json.dumps(known, separators=(",", ":"), ensure_ascii=False).encode()))
    assert list(struct.unpack("<2Q", raw)) == sorted(expected)


def test_the_checksum_of_a_line_as_the_prose_has_it() -> None:
    for line in (GOLDEN / "ledger.jsonl").read_bytes().split(b"\n")[:-1]:
        body, _, rest = line.rpartition(b',"crc":')
        assert json.loads(line)["crc"] == f"{zlib.crc32(body):08x}"
        assert len(rest) == 11


def test_golden_values_are_those_of_the_text_files() -> None:
    assert len(MANIFEST) == (GOLDEN / "manifest.jsonl").read_bytes().count(b"\n")
    assert len(LEDGER) == (GOLDEN / "ledger.jsonl").read_bytes().count(b"\n")
    assert MARKER.writers == "all"
