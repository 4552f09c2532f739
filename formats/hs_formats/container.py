"""The `.pt` container: a stored zip that `torch.load` maps, laid out around the tensors' own memory.

`torch.save` copies every tensor through a pickler and one writer thread. A part's tensors already lie in host memory,
so this module computes the bytes that go before, between and after them and leaves the tensors where they are: the
result is a list of buffers for one vectored write. The archive holds what ``torch.serialization`` expects
(``data.pkl``, ``byteorder``, ``version``, ``data/<i>``), with tensor data aligned to 64 bytes, plus ``hs.json``: the
part's meta with dtypes, shapes and file offsets as plain JSON, so that readers need neither torch nor a pickle.

The pickle is written by `_Emitter` in protocol 2, restricted to what ``weights_only=True`` admits. Standard library
only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from hs_formats.errors import FormatError
from hs_formats.stored_zip import ZipLayout, read_directory, read_entry

__all__ = ["ARCHIVE", "DTYPES", "Plain", "TensorSpan", "TensorSpec", "lay_out", "read_header"]

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]
"""A value of the meta."""

ARCHIVE = "part"
"""Folder name of every record inside the zip; torch.load refuses records outside of it."""

_HEADER = f"{ARCHIVE}/hs.json"
_MAX_HEADER_BYTES = 1 << 20
_MAX_DIMENSIONS = 8
_MAX_EXTENT = 1 << 62


@dataclass(frozen=True, slots=True)
class _Dtype:
    storage: str
    itemsize: int


DTYPES: Mapping[str, _Dtype] = {
    "bfloat16": _Dtype("BFloat16Storage", 2),
    "float16": _Dtype("HalfStorage", 2),
    "float32": _Dtype("FloatStorage", 4),
    "int64": _Dtype("LongStorage", 8),
}
"""Tensor types of a part: torch's name → legacy storage class and bytes per element."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of a contiguous row-major tensor.

    Raises:
        FormatError: the dtype is not one of `DTYPES`, or a dimension is negative.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise FormatError(
                f"tensor {_short(self.name)}: dtype {_short(self.dtype)} is not one of {', '.join(DTYPES)}"
            )
        if any(size < 0 for size in self.shape):
            raise FormatError(f"tensor {self.name!r}: shape {self.shape} has a negative dimension")

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """A tensor and where its data lies in the file."""

    spec: TensorSpec
    offset: int


class _Emitter:
    """Writes the few pickle opcodes that a dict of tensors and plain values needs."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")

    def text(self, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")  # as every pickler does
        self.out += b"X" + struct.pack("<I", len(data)) + data

    def integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < (1 << 31):
            self.out += b"J" + struct.pack("<i", value)
        else:
            data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
            self.out += b"\x8a" + bytes([len(data)]) + data

    def name(self, module: str, qualified: str) -> None:
        self.out += f"c{module}\n{qualified}\n".encode("ascii")

    def integers(self, values: Sequence[int]) -> None:
        self.out += b"("
        for value in values:
            self.integer(value)
        self.out += b"t"

    def plain(self, value: Plain) -> None:
        match value:
            case None:
                self.out += b"N"
            case bool():
                self.out += b"\x88" if value else b"\x89"
            case int():
                self.integer(value)
            case float():
                if not math.isfinite(value):
                    raise FormatError(f"the meta holds {value}, which JSON cannot say")
                self.out += b"G" + struct.pack(">d", value)
            case str():
                self.text(value)
            case list():
                self.out += b"]("
                for item in value:
                    self.plain(item)
                self.out += b"e"
            case dict():
                self.out += b"}("
                for key, item in value.items():
                    self.text(key)
                    self.plain(item)
                self.out += b"u"
            case _:  # what the annotation rules out would silently end as an unreadable pickle
                raise FormatError(f"the meta holds a {type(value).__name__}")

    def tensor(self, spec: TensorSpec, key: str) -> None:
        # torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks)
        self.name("torch._utils", "_rebuild_tensor_v2")
        self.out += b"(("
        self.text("storage")
        self.name("torch", DTYPES[spec.dtype].storage)
        self.text(key)
        self.text("cpu")
        self.integer(spec.count)
        self.out += b"tQ"
        self.integer(0)
        self.integers(spec.shape)
        self.integers([math.prod(max(size, 1) for size in spec.shape[i + 1 :]) for i in range(len(spec.shape))])
        self.out += b"\x89"
        self.name("collections", "OrderedDict")
        self.out += b")RtR"


def _pickle(specs: Sequence[TensorSpec], meta: Mapping[str, Plain]) -> bytes:
    emitter = _Emitter()
    emitter.out += b"}("
    for key, spec in enumerate(specs):
        emitter.text(spec.name)
        emitter.tensor(spec, str(key))
    emitter.text("meta")
    emitter.plain(dict(meta))
    emitter.out += b"u."
    return bytes(emitter.out)


def lay_out(
    tensors: Sequence[tuple[TensorSpec, Sequence[bytes | memoryview]]], meta: Mapping[str, Plain]
) -> list[bytes | memoryview]:
    """The buffers that, written one after the other, are the `.pt` file.

    Args:
        tensors: each tensor with the buffers that hold its row-major little-endian data, in order.
        meta: what the part is; plain values only.

    Raises:
        FormatError: the buffers of a tensor do not add up to its size, a name is doubled, or a value is not plain.
    """
    specs = [spec for spec, _ in tensors]
    if len({spec.name for spec in specs} | {"meta"}) != len(specs) + 1 or "tensors" in meta:
        raise FormatError(f"tensors {[spec.name for spec in specs]}: a name is doubled or reserved")
    archive = ZipLayout()
    archive.add(f"{ARCHIVE}/data.pkl", [_pickle(specs, meta)])
    archive.add(f"{ARCHIVE}/byteorder", [b"little"])
    described: dict[str, Plain] = {}
    for key, (spec, buffers) in enumerate(tensors):
        size = sum(memoryview(item).nbytes for item in buffers)
        if size != spec.nbytes:
            raise FormatError(f"tensor {spec.name!r} of shape {spec.shape} needs {spec.nbytes} bytes, not {size}")
        offset = archive.add(f"{ARCHIVE}/data/{key}", buffers)
        described[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "offset": offset,
            "nbytes": size,
        }
    archive.add(f"{ARCHIVE}/version", [b"3\n"])
    archive.add(_HEADER, [json.dumps({**meta, "tensors": described}, separators=(",", ":")).encode()])
    archive.close()
    return archive.pieces


def read_header(file: IO[bytes]) -> tuple[dict[str, Any], dict[str, TensorSpan]]:
    """The meta and the tensor spans of a container, without unpickling anything.

    The zip directory must be whole, and each span must be exactly one ``data/<i>`` entry. Tensor data is not read.

    Args:
        file: seekable, opened for reading.

    Raises:
        FormatError: the file is cut, is no such container, or contradicts itself.
        OSError: it cannot be read.
    """
    entries = read_directory(file)
    entry = entries.get(_HEADER)
    if entry is None:
        raise FormatError(f"the zip holds no {_HEADER}")
    try:
        header = json.loads(read_entry(file, entry, limit_bytes=_MAX_HEADER_BYTES))
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{_HEADER} is not JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("tensors"), dict):
        raise FormatError(f"{_HEADER} describes no tensors")
    described: dict[str, Any] = header.pop("tensors")
    data = {item.offset: item.size for name, item in entries.items() if name.startswith(f"{ARCHIVE}/data/")}
    spans: dict[str, TensorSpan] = {}
    for name, item in described.items():
        span = _span(name, item)
        if data.pop(span.offset, None) != span.spec.nbytes:
            raise FormatError(f"tensor {_short(name)} is not where {_HEADER} says, in the size of its shape")
        spans[name] = span
    if data:
        raise FormatError(f"{len(data)} tensor entries are not described in {_HEADER}")
    return header, spans


def _span(name: str, item: object) -> TensorSpan:
    match item:
        case {"dtype": str(dtype), "shape": [*shape], "offset": offset} if (
            all(type(value) is int and 0 <= value <= _MAX_EXTENT for value in (*shape, offset))
            and len(shape) <= _MAX_DIMENSIONS
        ):
            return TensorSpan(TensorSpec(name, dtype, tuple(shape)), offset)
        case _:
            raise FormatError(f"tensor {_short(name)} is described as {_short(item)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
