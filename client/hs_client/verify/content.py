"""Looks at the values of one record, in blocks: what can be wrong by itself, and the facts that the set is compared by.

Pure numpy over bit patterns; nothing here reads a file. A block is some rows of all slots, [m, k+1, H].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from hs_client.verify.tokens import Sketch

__all__ = ["HEAD_POSITIONS", "SKETCH_CHANNELS", "SKETCH_TOKENS", "RecordFacts", "RecordReader", "as_floats"]

_BLOCK_BYTES = 4 << 20
_PROBE_CHANNELS = 8
_ZERO_SHARE = 0.25
"""States that are computed hold next to no exact zeros; so many in one vector were never written."""

HEAD_POSITIONS = (0, 1, 3, 7, 15)
"""Tokens whose state is compared with that of other prompts that begin alike."""

_HEAD_CHANNELS = 24
SKETCH_CHANNELS = 32
SKETCH_TOKENS = 256

_INFINITY = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}
_SIGN = {"bfloat16": 0x8000, "float16": 0x8000, "float32": 0x80000000}

Floats = npt.NDArray[np.float32]


def as_floats(bits: npt.NDArray[np.unsignedinteger], dtype: str) -> Floats:
    """The values behind bit patterns, exactly, as float32."""
    if dtype == "bfloat16":
        return (bits.astype("<u4") << 16).view("<f4")
    if dtype == "float16":
        return bits.view("<f2").astype("<f4")
    return bits.view("<f4")


def _channels(hidden_size: int, count: int) -> npt.NDArray[np.intp]:
    """`count` channels spread over all, the same ones for every record."""
    picked = np.random.default_rng(20_260_101).permutation(hidden_size)[:count]
    return np.sort(picked)


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What the comparison over the set needs of one record of n tokens, S = k + 1 slots.

    Attributes:
        log_rms: float32 [S], median over the tokens after the first of the natural logarithm of a state's RMS.
        spread: float32 [S], half the distance between its quartiles.
        cosine: float32 [S-1], median over these tokens of the cosine between a slot's state and the next slot's.
        cosine_spread: float32 [S-1], as `spread`.
        heads: float16 [P, S, 24 or H], the states of the tokens at HEAD_POSITIONS, as far as there are any, in some
            channels.
        sketch: of up to SKETCH_TOKENS tokens after the first, half of them from the start, half from the end.
        row_hashes: uint64 [n], of the last slot's rows.
        prefix_hashes: uint64 [n], of the ids up to and with each token.
    """

    n: int
    log_rms: Floats
    spread: Floats
    cosine: Floats
    cosine_spread: Floats
    heads: npt.NDArray[np.float16]
    sketch: Sketch
    row_hashes: npt.NDArray[np.uint64]
    prefix_hashes: npt.NDArray[np.uint64]


class RecordReader:
    """Takes the parts of one record in order, and gives its problems and facts.

    Args:
        dtype: of the states.
        slots: S.
        hidden_size: H.

    Attributes:
        problems: (kind, text) of each thing that is wrong, at most one of a kind and part.
    """

    def __init__(self, *, dtype: str, slots: int, hidden_size: int) -> None:
        self._dtype = dtype
        self._hidden_size = hidden_size
        self._head_channels = _channels(hidden_size, _HEAD_CHANNELS)
        self._sketch_channels = _channels(hidden_size, SKETCH_CHANNELS)
        self._slots = slots
        self._ids: list[npt.NDArray[np.int64]] = []
        self._log_rms: list[Floats] = []
        self._cosine: list[Floats] = []
        self._sketch: list[Floats] = []
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._heads: list[npt.NDArray[np.float16]] = []
        self._at = 0
        self.problems: list[tuple[str, str]] = []

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._at

    def add(self, ids: npt.NDArray[np.int64], bits: npt.NDArray[np.unsignedinteger]) -> None:
        """The next rows: `ids` [m] and bit patterns [m, S, H]."""
        step = max(1, _BLOCK_BYTES // (4 * self._slots * self._hidden_size))
        found: dict[str, str] = {}
        for start in range(0, len(ids), step):
            block = bits[start : start + step]
            for kind, text in self._block(block):
                found.setdefault(kind, text)
            self._at += len(block)
        self._ids.append(ids)
        self.problems += found.items()

    def _block(self, bits: npt.NDArray[np.unsignedinteger]) -> Iterator[tuple[str, str]]:
        floats = as_floats(bits, self._dtype)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            square = np.einsum("rsh,rsh->rs", floats, floats)
            if not np.isfinite(square).all():
                yield from self._not_finite(bits)
                wide = floats.astype(np.float64)
                square = np.einsum("rsh,rsh->rs", wide, wide)
            dot = np.einsum("rsh,rsh->rs", floats[:, :-1], floats[:, 1:])
            self._log_rms.append((0.5 * np.log(square / self._hidden_size)).astype(np.float32))
            self._cosine.append((dot / np.sqrt(square[:, :-1] * square[:, 1:])).astype(np.float32))
        yield from self._zero_or_constant(bits, floats)
        yield from self._hash(bits)
        for position in HEAD_POSITIONS:
            if self._at <= position < self._at + len(floats):
                head = np.nan_to_num(floats[position - self._at][:, self._head_channels])
                self._heads.append(np.clip(head, -6e4, 6e4).astype(np.float16))
        self._sketch.append(floats[:, 0, self._sketch_channels])

    def _not_finite(self, bits: npt.NDArray[np.unsignedinteger]) -> Iterator[tuple[str, str]]:
        magnitude = bits & bits.dtype.type(_SIGN[self._dtype] - 1)
        infinity = _INFINITY[self._dtype]
        bad = np.argwhere(magnitude >= infinity)
        if len(bad):
            row, slot, channel = bad[0].tolist()
            what = "NaN" if int(magnitude[row, slot, channel]) > infinity else "infinite"
            more = f", and {len(bad) - 1} more values" if len(bad) > 1 else ""
            yield "not finite", f"token {self._at + row}, slot {slot}, channel {channel} is {what}{more}"

    def _zero_or_constant(self, bits: npt.NDArray[np.unsignedinteger], floats: Floats) -> Iterator[tuple[str, str]]:
        with np.errstate(invalid="ignore"):  # signalling NaN
            zeros = self._hidden_size - np.count_nonzero(floats, axis=2)
        limit = max(2, int(_ZERO_SHARE * self._hidden_size))
        bad = np.argwhere(zeros >= limit)
        if len(bad):
            row, slot = bad[0].tolist()
            count = int(zeros[row, slot])
            text = f"token {self._at + row}, slot {slot}: {count} of {self._hidden_size} channels are exactly zero"
            yield "zeros", text + (f", and {len(bad) - 1} more states" if len(bad) > 1 else "")
        if self._hidden_size > 1:
            probe = bits[:, :, :_PROBE_CHANNELS]
            for row, slot in np.argwhere((probe == probe[:, :, :1]).all(axis=2)).tolist():
                if bool((bits[row, slot] == bits[row, slot, 0]).all()) and floats[row, slot, 0] != 0:
                    yield "constant", f"token {self._at + row}, slot {slot}: all channels are {floats[row, slot, 0]:g}"
                    break

    def _hash(self, bits: npt.NDArray[np.unsignedinteger]) -> Iterator[tuple[str, str]]:
        flat = np.ascontiguousarray(bits).data.cast("B")
        size = self._hidden_size * bits.dtype.itemsize
        count = bits.shape[0] * self._slots
        hashes = np.fromiter(
            (xxhash.xxh3_64_intdigest(flat[at : at + size]) for at in range(0, count * size, size)), "<u8", count
        ).reshape(-1, self._slots)
        self._hashes.append(hashes)
        ordered = np.sort(hashes, axis=1)
        same = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if len(same):
            row = int(same[0])
            values = hashes[row].tolist()
            slots = [slot for slot, value in enumerate(values) if values.count(value) > 1]
            yield "equal slots", f"token {self._at + row}: slots {slots} hold the same state"

    def facts(self) -> RecordFacts:
        """The facts of all rows; adds what only the whole record shows to `problems`."""
        ids = np.concatenate(self._ids)
        hashes = np.concatenate(self._hashes)
        log_rms, cosine = np.concatenate(self._log_rms), np.concatenate(self._cosine)
        self._find_repeats(ids, hashes)
        after_first = slice(1, None) if len(ids) > 1 else slice(None)
        picked = _sketch_rows(len(ids))
        around = np.concatenate([[-1], ids, [-1]])
        return RecordFacts(
            n=len(ids),
            log_rms=np.median(log_rms[after_first], axis=0),
            spread=_half_quartiles(log_rms[after_first]),
            cosine=np.median(cosine[after_first], axis=0),
            cosine_spread=_half_quartiles(cosine[after_first]),
            heads=np.stack(self._heads),
            sketch=Sketch(ids[picked], around[picked], around[picked + 2], np.concatenate(self._sketch)[picked]),
            row_hashes=hashes[:, -1].copy(),
            prefix_hashes=_prefix_hashes(ids),
        )

    def _find_repeats(self, ids: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint64]) -> None:
        """One state for different tokens: something was copied. Equal tokens may have equal states, as in "a a a"."""
        for slot in range(self._slots):
            order = np.lexsort((ids, hashes[:, slot]))
            same = hashes[order[1:], slot] == hashes[order[:-1], slot]
            bad = np.flatnonzero(same & (ids[order[1:]] != ids[order[:-1]]))
            if len(bad):
                one, other = sorted((int(order[bad[0]]), int(order[bad[0] + 1])))
                text = f"tokens {one} and {other} differ and have the same state in slot {slot}"
                self.problems.append(
                    ("repeated rows", text + (f", as have {len(bad) - 1} more" if len(bad) > 1 else ""))
                )
                return


def _half_quartiles(values: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(values, [25, 75], axis=0)
        return np.asarray((high - low) / 2, dtype=np.float32)


def _sketch_rows(n: int) -> npt.NDArray[np.intp]:
    rows = np.arange(1, n)
    if len(rows) > SKETCH_TOKENS:
        rows = np.concatenate([rows[: SKETCH_TOKENS // 2], rows[-SKETCH_TOKENS // 2 :]])
    return rows


def _prefix_hashes(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A prompt of one token only, however often, counts as that token: attention over equal values gives them back, so
    all its states are equal."""
    digest = xxhash.xxh3_64()
    data = np.ascontiguousarray(ids).data.cast("B")
    hashes = np.empty(len(ids), dtype="<u8")
    for at in range(len(ids)):
        digest.update(data[8 * at : 8 * at + 8])
        hashes[at] = digest.intdigest()
    alike = np.flatnonzero(ids != ids[0])
    hashes[: alike[0] if len(alike) else len(ids)] = hashes[0]
    return hashes
