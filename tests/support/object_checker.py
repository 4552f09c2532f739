"""Looks at a dataset in a bucket with boto3 and `unhsz` alone: what do its manifests say, and is it all there, once?"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from fake_server import fake_states
from object_servers import Bucket
from unhsz import unhsz

__all__ = ["book_lines", "check_samples", "check_stored"]

_SEGMENT = re.compile(r"(.*)/([0-9]{10})-([0-9]{10})\.jsonl")


def book_lines(bucket: Bucket, prefix: str) -> dict[str, list[dict[str, Any]]]:
    """The lines of every log below `prefix`, by log; each number of a log is read from one segment that has it."""
    numbers: dict[str, dict[int, str]] = {}
    spans: dict[str, tuple[int, int]] = {}
    for key in bucket.keys(prefix + "/"):
        match = _SEGMENT.fullmatch(key)
        assert match is not None, f"{key} is no segment"
        spans[key] = int(match[2]), int(match[3])
        for number in range(spans[key][0], spans[key][1] + 1):
            known = numbers.setdefault(match[1], {}).get(number)
            if known is None or spans[known][1] - spans[known][0] < spans[key][1] - spans[key][0]:
                numbers[match[1]][number] = key
    found: dict[str, list[dict[str, Any]]] = {}
    for log, by_number in numbers.items():
        assert sorted(by_number) == list(range(1, len(by_number) + 1)), f"{log} has gaps"
        lines: list[dict[str, Any]] = []
        for key in dict.fromkeys(by_number[number] for number in sorted(by_number)):
            text = bucket.get(key)
            assert text.endswith(b"\n")
            lines += [json.loads(line) for line in text.splitlines()]
        found[log.rpartition("/")[2]] = lines
    return found


def check_stored(bucket: Bucket, prefix: str, parts: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Exactly `parts` are stored below `prefix`, each once, byte for byte, with a line; nothing else lies about."""
    lines: dict[str, dict[str, Any]] = {}
    for of_log in book_lines(bucket, f"{prefix}/manifest").values():
        for line in of_log:
            known = lines.setdefault(line["part"], line)
            assert [known[key] for key in ("status", "path", "xxh3")] == [
                line[key] for key in ("status", "path", "xxh3")
            ]
    assert sorted(lines) == sorted(parts)
    for name, line in lines.items():
        assert line["status"] == "stored", line
        stored = bucket.get(f"{prefix}/{line['path']}")
        assert len(stored) == line["stored_bytes"]
        original = unhsz(stored) if line["path"].endswith(".hsz") else stored
        assert original == parts[name], name
        assert xxhash.xxh3_128_hexdigest(original) == line["xxh3"]
    assert bucket.keys(f"{prefix}/data/") == sorted(f"{prefix}/{line['path']}" for line in lines.values())
    return lines


def check_samples(bucket: Bucket, prefix: str, expected: Mapping[str, Sequence[int]], *, hidden: int = 8) -> None:
    """Every sample is done once and was announced; its record tiles it, with its ids and the fake server's states."""
    intents: dict[str, dict[str, Any]] = {}
    done: dict[str, str] = {}
    for of_run in book_lines(bucket, f"{prefix}/ledger").values():
        for line in of_run:
            if line["type"] == "intent":
                intents[line["rid"]] = line
            elif line["type"] == "done":
                assert line["sample_id"] not in done, f"{line['sample_id']} is done twice"
                done[line["sample_id"]] = line["rid"]
    assert sorted(done) == sorted(expected)
    lines: dict[str, dict[str, Any]] = {}
    for of_log in book_lines(bucket, f"{prefix}/manifest").values():
        for line in of_log:
            lines.setdefault(line["part"], line)
    parts: dict[str, list[dict[str, Any]]] = {}
    for name, line in lines.items():
        parts.setdefault(name.split(".")[0], []).append(line)
    for sample_id, rid in done.items():
        ids = list(expected[sample_id])
        assert intents[rid]["sample_id"] == sample_id
        at = 0
        for line in sorted(parts[rid], key=lambda line: line["part"]):
            stored = unhsz(bucket.get(f"{prefix}/{line['path']}"))
            assert xxhash.xxh3_128_hexdigest(stored) == line["xxh3"]
            part = torch.load(io.BytesIO(stored), weights_only=True)
            stop = at + len(part["input_ids"])
            assert part["input_ids"].tolist() == ids[at:stop], sample_id
            states = part["hidden_states"].numpy()
            np.testing.assert_array_equal(states, fake_states(ids, at, stop, slots=states.shape[1], hidden=hidden))
            at = stop
        assert at == len(ids), f"{sample_id}: {at} of {len(ids)} tokens"
