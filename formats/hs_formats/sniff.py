"""Where floats lie in a file that any program may have written: `torch.save` archives and safetensors.

Nothing of a file is executed: its pickle may name tensors, storages and plain values only, and nothing is made of them.
What is not understood is no error, but opaque.
"""

from __future__ import annotations

import errno
import io
import json
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from hs_formats.errors import FormatError
from hs_formats.layout import Floats, Layout
from hs_formats.planes import WORDS

__all__ = ["sniff_layout"]

_MAX_HEADER_BYTES = 16 << 20
_MAX_SLOTS = 64
_LOCAL_HEADER_BYTES = 30
_FLAT_CHANNELS = (4096, 1024, 256, 64)

_STORAGES = {
    "BFloat16Storage": "bfloat16",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "UntypedStorage": "",
}
_SAFETENSORS = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}

_Found = tuple[int, str, tuple[int, ...]]
"""Start, dtype and shape of a contiguous tensor."""


def sniff_layout(file: IO[bytes], size: int) -> Layout:
    """The floats in a file of `size` bytes that can be told apart from anything else; none for most files.

    Args:
        file: seekable, opened for reading.
        size: of the file.

    Raises:
        OSError: it cannot be read.
    """
    for look in (_torch_tensors, _safetensors):
        try:
            found = look(file, size)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an offset before the start, in a damaged directory
                raise
            continue
        except Exception:  # noqa: BLE001, S112 - unpickling what anybody wrote can fail in any way, and none matters
            continue
        if found:
            return _layout(found, size)
    return Layout(size)


def _layout(found: list[_Found], size: int) -> Layout:
    kept: list[Floats] = []
    for start, dtype, shape in sorted(found):
        shaped = _shaped(dtype, shape)
        if shaped is None:
            continue
        floats = Floats(start, dtype, *shaped)
        if floats.stop <= size and (not kept or start >= kept[-1].stop):  # storages may be shared
            kept.append(floats)
    try:
        return Layout(size, tuple(kept))
    except FormatError:
        return Layout(size)


def _shaped(dtype: str, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """A tensor as rows, slots and channels. A few vectors for each of many rows are slots."""
    if dtype not in WORDS or not shape or min(shape) < 1:
        return None
    if len(shape) == 1:
        channels = next((channels for channels in _FLAT_CHANNELS if shape[0] % channels == 0), 0)
        return (shape[0] // channels, 1, channels) if channels else None
    slots = shape[1] if len(shape) == 3 and shape[1] <= _MAX_SLOTS and shape[0] > shape[1] else 1
    if not Floats.codable(dtype, slots, shape[-1]):
        return None
    return math.prod(shape[:-1]) // slots, slots, shape[-1]


def _torch_tensors(file: IO[bytes], size: int) -> list[_Found]:
    del size
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":
        return []
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        (pickled,) = (entry for name, entry in entries.items() if name.endswith("/data.pkl"))
        if pickled.file_size > _MAX_HEADER_BYTES or pickled.compress_type != zipfile.ZIP_STORED:
            return []
        folder = pickled.filename.removesuffix("data.pkl")
        unpickler = _Unpickler(io.BytesIO(archive.read(pickled)))
        unpickler.load()
    found: list[_Found] = []
    for dtype, key, offset, shape in unpickler.tensors:
        entry = entries.get(f"{folder}data/{key}")
        if entry is None or entry.compress_type != zipfile.ZIP_STORED or dtype not in WORDS:
            continue
        start, length = offset * WORDS[dtype].itemsize, math.prod(shape) * WORDS[dtype].itemsize
        if start + length <= entry.file_size:
            found.append((_data_offset(file, entry.header_offset) + start, dtype, shape))
    return found


def _data_offset(file: IO[bytes], header_at: int) -> int:
    file.seek(header_at)
    header = file.read(_LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    return int(header_at + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes)


class _Unpickler(pickle.Unpickler):
    """Builds nothing: collects the tensors that a pickle names."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.tensors: list[tuple[str, str, int, tuple[int, ...]]] = []

    def find_class(self, module: str, name: str) -> Any:
        allowed: Mapping[tuple[str, str], Callable[..., Any]] = {
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v3"): self._typed_tensor,
            ("torch._utils", "_rebuild_parameter"): lambda *_: None,
            ("collections", "OrderedDict"): OrderedDict,
        }
        if (module, name) in allowed:
            return allowed[module, name]
        if module in ("torch", "torch.storage"):
            return name  # a storage class or a dtype: only ever looked at
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key, *_ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(str(kind))
        return storage, key

    def _tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> None:
        self._keep(_STORAGES.get(storage[0], ""), storage, offset, size, stride)

    def _typed_tensor(self, storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any,
                      *_: Any) -> None:  # fmt: skip
        del grad, hooks
        self._keep(dtype, storage, offset, size, stride)

    def _keep(self, dtype: str, storage: Any, offset: int, size: Any, stride: Any) -> None:
        shape = tuple(map(int, size))
        strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
        contiguous = all(have == want for have, want, count in zip(stride, strides, shape, strict=True) if count > 1)
        if contiguous and offset >= 0:
            self.tensors.append((dtype, str(storage[1]), offset, shape))


def _safetensors(file: IO[bytes], size: int) -> list[_Found]:
    file.seek(0)
    prefix = file.read(8)
    if len(prefix) < 8:
        return []
    (length,) = struct.unpack("<Q", prefix)
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        return []
    header = json.loads(file.read(length))
    return list(_described(header, 8 + length))


def _described(header: Any, base: int) -> Iterator[_Found]:
    for item in header.values():
        match item:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
                dtype in _SAFETENSORS and all(type(value) is int for value in shape)
            ):
                named = _SAFETENSORS[dtype]
                if 0 <= start <= stop and math.prod(shape) * WORDS[named].itemsize == stop - start:
                    yield base + start, named, tuple(shape)
