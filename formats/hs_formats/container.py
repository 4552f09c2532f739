"""The `.pt` container: a stored zip that `torch.load` maps, laid out around the tensors' own memory.

`torch.save` copies every tensor through a pickler and one writer thread. A part's tensors already lie in host memory,
so this module computes the bytes that go before, between and after them and leaves the tensors where they are: the
result is a list of buffers for one vectored write. The archive holds what ``torch.serialization`` expects (``data.pkl``,
``byteorder``, ``version``, ``data/<i>``), with tensor data aligned to 64 bytes, plus ``hs.json``: the part's meta with
dtypes, shapes and file offsets as plain JSON, so that readers need neither torch nor a pickle.

The pickle is written by `_Emitter` in protocol 2, restricted to what ``weights_only=True`` admits. Standard library only:
SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from hs_formats.errors import FormatError

__all__ = ["ARCHIVE", "DTYPES", "Plain", "TensorSpec", "TensorSpan", "lay_out", "read_header"]

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]
"""A value of the meta."""

ARCHIVE = "part"
"""Folder name of every record inside the zip; torch.load refuses records outside of it."""

_HEADER = f"{ARCHIVE}/hs.json"
_ALIGNMENT = 64
_U32 = 0xFFFFFFFF
_MAX_HEADER_BYTES = 1 << 20


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
            raise FormatError(f"tensor {self.name!r}: dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
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
        data = value.encode("utf-8", "strict")
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
        self.integers([math.prod(spec.shape[i + 1 :]) for i in range(len(spec.shape))])
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


class _Zip:
    """Lays out stored entries; data buffers are referred to, never copied."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.at = 0
        self._directory = bytearray()
        self._count = 0

    def _put(self, piece: bytes | memoryview) -> None:
        self.pieces.append(piece)
        self.at += len(piece)

    def add(self, name: str, data: Sequence[bytes | memoryview]) -> int:
        """Append an entry; returns the file offset of its data."""
        encoded = name.encode("ascii")
        buffers = [memoryview(item).cast("B") for item in data]
        size = sum(len(item) for item in buffers)
        checksum = 0
        for item in buffers:
            checksum = zlib.crc32(item, checksum)
        header_at = self.at
        large = size >= _U32
        zip64 = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        fixed = 30 + len(encoded) + len(zip64)
        padding = -(header_at + fixed + 4) % _ALIGNMENT
        extra = zip64 + struct.pack("<2sH", b"FB", padding) + b"Z" * padding  # torch pads with the same field
        shown = _U32 if large else size
        version = 45 if large else 20
        self._put(
            struct.pack(
                "<IHHHHHIIIHH",
                0x04034B50,
                version,
                0,
                0,
                0,
                0x21,
                checksum,
                shown,
                shown,
                len(encoded),
                len(extra),
            )
            + encoded
            + extra
        )
        data_at = self.at
        for item in buffers:
            self._put(item)
        far = header_at >= _U32
        fields = (struct.pack("<QQ", size, size) if large else b"") + (struct.pack("<Q", header_at) if far else b"")
        directory_extra = struct.pack("<HH", 1, len(fields)) + fields if fields else b""
        self._directory += (
            struct.pack(
                "<IHHHHHHIIIHHHHHII",
                0x02014B50,
                45,
                45 if fields else 20,
                0,
                0,
                0,
                0x21,
                checksum,
                shown,
                shown,
                len(encoded),
                len(directory_extra),
                0,
                0,
                0,
                0,
                _U32 if far else header_at,
            )
            + encoded
            + directory_extra
        )
        self._count += 1
        return data_at

    def close(self) -> None:
        at, size = self.at, len(self._directory)
        self._put(bytes(self._directory))
        if at >= _U32:
            end = self.at
            self._put(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, self._count, self._count, size, at))
            self._put(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        self._put(
            struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, self._count, self._count, size, _U32 if at >= _U32 else at, 0)
        )


def lay_out(
    tensors: Sequence[tuple[TensorSpec, Sequence[bytes | memoryview]]], meta: Mapping[str, Plain]
) -> list[bytes | memoryview]:
    """The buffers that, written one after the other, are the `.pt` file.

    Args:
        tensors: each tensor with the buffers that hold its row-major little-endian data, in order.
        meta: what the part is; plain values only.

    Raises:
        FormatError: the buffers of a tensor do not add up to its size.
    """
    specs = [spec for spec, _ in tensors]
    archive = _Zip()
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

    The zip directory must be whole, every entry stored, and each span must be exactly one ``data/<i>`` entry.

    Args:
        file: seekable, opened for reading.

    Raises:
        FormatError: the file is cut, is no such container, or contradicts itself.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {info.filename: info for info in archive.infolist()}
            if len(entries) != len(archive.infolist()):
                raise FormatError("the zip names an entry twice")
            info = entries.get(_HEADER)
            if info is None:
                raise FormatError(f"the zip holds no {_HEADER}")
            if info.file_size > _MAX_HEADER_BYTES:
                raise FormatError(f"{_HEADER} has {info.file_size} bytes, more than {_MAX_HEADER_BYTES}")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
                raise FormatError("the zip holds a compressed entry")
            header = json.loads(archive.read(info))
    except (zipfile.BadZipFile, EOFError, struct.error) as error:
        raise FormatError(f"not a whole zip file: {error}") from error
    except ValueError as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{_HEADER} is not JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("tensors"), dict):
        raise FormatError(f"{_HEADER} describes no tensors")
    described: dict[str, Any] = header.pop("tensors")
    data = {
        _data_offset(file, entry): entry.file_size
        for name, entry in entries.items()
        if name.startswith(f"{ARCHIVE}/data/")
    }
    spans: dict[str, TensorSpan] = {}
    for name, item in described.items():
        span = _span(name, item)
        if data.pop(span.offset, None) != span.spec.nbytes:
            raise FormatError(f"tensor {name!r} at {span.offset} is not an entry of {span.spec.nbytes} bytes")
        spans[name] = span
    if data:
        raise FormatError(f"{len(data)} tensor entries are not described in {_HEADER}")
    return header, spans


def _span(name: str, item: object) -> TensorSpan:
    match item:
        case {"dtype": str(dtype), "shape": [*shape], "offset": int(offset)} if all(type(x) is int for x in shape):
            return TensorSpan(TensorSpec(name, dtype, tuple(shape)), offset)
        case _:
            raise FormatError(f"tensor {name!r} is described as {item!r}")


def _data_offset(file: IO[bytes], entry: zipfile.ZipInfo) -> int:
    file.seek(entry.header_offset)
    header = file.read(30)
    if len(header) != 30 or header[:4] != b"PK\x03\x04":
        raise FormatError(f"entry {entry.filename} has no local header")
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    return entry.header_offset + 30 + int(name_bytes) + int(extra_bytes)
