"""The measurement itself, in a process of its own: ``python -m benchmarks.codec.measure OPTIONS`` prints JSON.

Ratios come from real hidden states, whole tensors. Speeds come from a tensor drawn after them, as large as a part is:
the real samples are small, and repeated they would be found to repeat. All candidates take turns on it in each round,
and what counts is CPU time of the process, so that neighbours on the machine matter little; each is compared with
``zstd -1`` of the same round.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.codec.candidates import Candidate, Shape, candidates
from hs_formats.hsz_decode import HszFile

__all__ = ["REFERENCE", "drawn", "measure"]

REFERENCE = "zstd -1"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--shape", type=int, nargs=3, required=True)
    options = parser.parse_args()
    rows, slots, channels = options.shape
    json.dump(measure(options.samples, rounds=options.rounds, shape=(rows, slots, channels)), sys.stdout)
    return 0


def measure(folder: Path, *, rounds: int, shape: Shape) -> dict[str, Any]:
    """Ratios and speeds of everything that can be run here.

    Args:
        folder: holds the samples, ``*_bfloat16.pt``.
        rounds: how often each candidate encodes and decodes.
        shape: of the drawn tensor.
    """
    found, missing = candidates()
    samples = {path.stem: _words(path) for path in sorted(folder.glob("*_bfloat16.pt"))}
    problems: list[str] = []
    ratios: dict[str, dict[str, float]] = {candidate.name: {} for candidate in found}
    for stem, words in samples.items():
        for candidate in found:
            stored = _there_and_back(candidate, words.tobytes(), (words.shape[0], 1, words.shape[1]), problems)
            ratios[candidate.name][stem] = words.nbytes / stored
    tensor = drawn(list(samples.values()), shape)
    for candidate in found:
        ratios[candidate.name]["drawn"] = tensor.nbytes / _there_and_back(candidate, tensor.tobytes(), shape, problems)
    timed = {candidate.name: _Times() for candidate in found}
    data = tensor.tobytes()
    for _ in range(rounds):
        for candidate in found:
            timed[candidate.name].add(candidate, data, shape)
    return {
        "candidates": {
            candidate.name: {
                "version": candidate.version,
                "ratios": {stem: round(ratio, 4) for stem, ratio in ratios[candidate.name].items()},
                "encode_s": timed[candidate.name].encode_s,
                "decode_s": timed[candidate.name].decode_s,
            }
            for candidate in found
        },
        "one_slot_s": _one_slot(found[0], data, shape, rounds),
        "bytes": len(data),
        "missing": missing,
        "problems": problems,
        "python": platform.python_version(),
    }


def _words(path: Path) -> np.ndarray[Any, Any]:
    words: np.ndarray[Any, Any] = torch.load(path, weights_only=True).view(torch.int16).numpy().view(np.uint16)
    return words


def drawn(samples: list[np.ndarray[Any, Any]], shape: Shape) -> np.ndarray[Any, Any]:
    """A bfloat16 tensor of `shape`: normal values in the channel and token scales of the samples, in turn by slot."""
    rows, slots, channels = shape
    dice = np.random.default_rng(20)
    out = np.empty(shape, np.uint16)
    for slot in range(slots):
        sample = (samples[slot % len(samples)].astype(np.uint32) << 16).view(np.float32)
        channel_scales = np.median(np.abs(sample), axis=0)
        token_scales = np.median(np.abs(sample) / np.maximum(channel_scales, 1e-9), axis=1)
        values = dice.normal(0, 1, (rows, channels)) * np.resize(dice.permutation(channel_scales), channels)
        values *= dice.choice(token_scales, rows)[:, None]
        bits = values.astype(np.float32).view(np.uint32)
        out[:, slot] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return out


def _there_and_back(candidate: Candidate, data: bytes, shape: Shape, problems: list[str]) -> int:
    """Stored bytes; a difference is a problem."""
    stored = candidate.encode(candidate.prepare(data, shape))
    if bytes(candidate.decode(stored)) != data:
        problems.append(f"{candidate.name} gives other bytes back")
    return sum(map(len, stored)) if isinstance(stored, list) else len(stored)


class _Times:
    """CPU seconds of one candidate, a value for each round."""

    def __init__(self) -> None:
        self.encode_s: list[float] = []
        self.decode_s: list[float] = []

    def add(self, candidate: Candidate, data: bytes, shape: Shape) -> None:
        """One round."""
        prepared = candidate.prepare(data, shape)
        begun_s = time.process_time()
        stored = candidate.encode(prepared)
        encoded_s = time.process_time()
        if isinstance(stored, list):
            stored = [b"".join(stored)]  # what a file would hold
        joined_s = time.process_time()
        candidate.decode(stored)
        self.encode_s.append(round(encoded_s - begun_s, 5))
        self.decode_s.append(round(time.process_time() - joined_s, 5))


def _one_slot(candidate: Candidate, data: bytes, shape: Shape, rounds: int) -> list[float]:
    """CPU seconds to decode the last slot alone into a buffer, once a round."""
    stored = b"".join(candidate.encode(candidate.prepare(data, shape)))
    found: list[float] = []
    out = np.empty((shape[0], shape[2]), np.dtype("<u2"))
    for _ in range(rounds):
        begun_s = time.process_time()
        opened = HszFile.of_bytes(stored)
        opened.read_slot(opened.floats[0], shape[1] - 1, 0, out)
        found.append(round(time.process_time() - begun_s, 5))
    return found


if __name__ == "__main__":
    sys.exit(main())
