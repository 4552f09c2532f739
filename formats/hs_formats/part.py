"""The content of a part file: its meta, its two tensors, and how to make and inspect one.

A part holds ``input_ids`` int64 [m], ``hidden_states`` dtype [m, k+1, H] and ``meta``. Slots 0..k-1 of the states are
the boundaries in ascending order, slot k is the last state, after the model's final norm. Row i belongs to token
start + i.

Standard library only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import IO, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from hs_formats.container import Plain, TensorSpan, TensorSpec, lay_out, read_header
from hs_formats.errors import FormatError
from hs_formats.names import PartName, Rid
from hs_formats.tiling import Writers

__all__ = [
    "PART_OVERHEAD_BYTES",
    "PART_VERSION",
    "PartInfo",
    "PartMeta",
    "inspect_part",
    "parse_struct",
    "part_pieces",
]

T = TypeVar("T")

PART_VERSION = 1

PART_OVERHEAD_BYTES = 8192
"""Upper bound of what a part takes in scratch beyond its tensors: headers, meta and the rounding to pages."""

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PartMeta:
    """What a part is and where it comes from. Everything a reader must know to use it without its neighbours."""

    rid: str
    start: int
    stop: int
    n: int
    boundaries: list[int]
    dtype: str
    hidden_size: int
    model: str
    config_hash: str
    tp_rank: int
    tp_size: int
    attn_tp_rank: int
    attn_tp_size: int
    dp_rank: int
    dp_size: int
    writers: Writers
    expected_ranks: list[int]
    sglang_version: str
    capture_mode: str
    nonce: str
    last_state: str = "post_norm"
    format: str = "hs-part"
    version: int = PART_VERSION

    @property
    def slots(self) -> int:
        """k + 1: the boundaries and the last state."""
        return len(self.boundaries) + 1

    @property
    def name(self) -> PartName:
        """The name the file must have.

        Raises:
            FormatError: the meta holds no valid name.
        """
        return PartName(Rid.parse(self.rid), self.start, self.stop, self.n, self.tp_rank)

    def to_plain(self) -> dict[str, Plain]:
        """Plain values, in the order of the fields."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> PartMeta:
        """Inverse of `to_plain`; fields it does not know are ignored.

        Raises:
            FormatError: a field is missing, of another type or without sense, or the format version is not ours.
        """
        if data.get("format") != "hs-part" or data.get("version") != PART_VERSION:
            raise FormatError(
                f"part format {data.get('format')!r} version {data.get('version')!r}, not hs-part {PART_VERSION}"
            )
        meta = parse_struct(cls, data)
        if sorted(set(meta.boundaries)) != meta.boundaries or any(b < 1 for b in meta.boundaries):
            raise FormatError(f"boundaries {meta.boundaries} do not ascend from 1")
        if meta.hidden_size < 1:
            raise FormatError(f"hidden size {meta.hidden_size} is not positive")
        return meta


def parse_struct(kind: type[T], data: Mapping[str, Any]) -> T:
    """Dataclass `kind` from JSON values, with the type of every field checked; unknown keys are ignored.

    Raises:
        FormatError: names the first field that is missing or of another type.
    """
    values: dict[str, Any] = {}
    for name, required, fits in _checks(cast("Any", kind)):
        if name not in data:
            if required:
                raise FormatError(f"field {name!r} is missing")
            continue
        value = data[name]
        if not fits(value):
            shown = repr(value)
            raise FormatError(f"field {name!r} is {shown if len(shown) <= 120 else shown[:120] + '…'}")
        values[name] = value
    return kind(**values)


@functools.cache
def _checks(kind: type) -> list[tuple[str, bool, Callable[[object], bool]]]:
    """Of each field its name, whether it must be there, and the check of its value."""
    hints = get_type_hints(kind)
    return [(item.name, item.default is item.default_factory, _check(hints[item.name])) for item in fields(kind)]


def _check(hint: Any) -> Callable[[object], bool]:
    if isinstance(hint, UnionType):
        options = [_check(option) for option in get_args(hint)]
        return lambda value: any(fits(value) for fits in options)
    origin = get_origin(hint)
    if origin is list:
        item_fits = _check(get_args(hint)[0])
        return lambda value: isinstance(value, list) and all(map(item_fits, value))
    if origin is dict:
        return lambda value: isinstance(value, dict)
    if origin is not None:  # Literal
        allowed = get_args(hint)
        return lambda value: value in allowed
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    return lambda value: type(value) is hint


@dataclass(frozen=True, slots=True)
class PartInfo:
    """A part file whose container, meta and name agree."""

    meta: PartMeta
    input_ids: TensorSpan
    hidden_states: TensorSpan


def part_pieces(
    meta: PartMeta, *, input_ids: bytes | memoryview, hidden_states: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """Buffers of the part file, for `hs_formats.durable.write_all`. Nothing is copied.

    Args:
        meta: describes the rows.
        input_ids: little-endian int64 [m].
        hidden_states: buffers that together are row-major [m, k+1, H] of ``meta.dtype``.

    Raises:
        FormatError: sizes do not fit the meta, or its texts are so long that the file would outgrow what admission
            reckons with (`PART_OVERHEAD_BYTES`).
    """
    rows = meta.stop - meta.start
    states = TensorSpec("hidden_states", meta.dtype, (rows, meta.slots, meta.hidden_size))
    ids = TensorSpec("input_ids", "int64", (rows,))
    pieces = lay_out([(ids, [input_ids]), (states, hidden_states)], meta.to_plain())
    overhead = sum(len(piece) for piece in pieces) - ids.nbytes - states.nbytes
    if overhead > PART_OVERHEAD_BYTES - _PAGE_BYTES:
        raise FormatError(
            f"{overhead} bytes of headers and meta are more than {PART_OVERHEAD_BYTES - _PAGE_BYTES}: "
            "use a shorter path of the model"
        )
    return pieces


def inspect_part(file: IO[bytes], name: PartName) -> PartInfo:
    """Check a part's container, meta, shapes and name against each other; tensor data is not read.

    Raises:
        FormatError: says what is wrong with the file.
    """
    header, spans = read_header(file)
    meta = PartMeta.from_plain(header)
    if meta.name != name:
        raise FormatError(f"the file says it is {meta.name}")
    if set(spans) != {"input_ids", "hidden_states"}:
        raise FormatError(f"tensors {sorted(spans)} instead of hidden_states and input_ids")
    info = PartInfo(meta, spans["input_ids"], spans["hidden_states"])
    want = {
        "input_ids": ("int64", (name.rows,)),
        "hidden_states": (meta.dtype, (name.rows, meta.slots, meta.hidden_size)),
    }
    for span in (info.input_ids, info.hidden_states):
        dtype, shape = want[span.spec.name]
        if (span.spec.dtype, span.spec.shape) != (dtype, shape):
            raise FormatError(
                f"{span.spec.name} is {span.spec.dtype} {list(span.spec.shape)}, the meta says {dtype} {list(shape)}"
            )
    return info
