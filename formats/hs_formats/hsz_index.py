"""What an ``.hsz`` file says about itself: its head and tail frames, and the segments between them.

A file is: the head (a skippable frame that names the format and the codec), zstd frames of the content, the tail (a
skippable frame with the index). Only the index says where frames end and what they are, so everything in it is checked
here, before any of it is believed: a reader afterwards needs no check but that of frame against size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import xxhash

from hs_formats.errors import FormatError
from hs_formats.layout import MAX_GROUP_BYTES, Floats
from hs_formats.planes import Transform
from hs_formats.statistics import SlotStatistics
from hs_formats.zstd import skippable_frame, skippable_payload

__all__ = [
    "HEAD_BYTES",
    "TAIL_SUFFIX",
    "FloatsSegment",
    "Index",
    "OpaqueSegment",
    "Segment",
    "head_frame",
    "index_bytes",
    "read_head",
    "read_tail",
    "tail_frame",
]

HEAD_BYTES = 8 + 16
"""Size of the head frame."""

TAIL_SUFFIX = struct.Struct("<QI4s")
"""How a file ends: xxh3-64 of the index, its length, the format's mark."""

MAX_INDEX_BYTES = 16 << 20

_MARK = b"hsz1"
_HEAD, _TAIL = 0, 1
_MAX = 1 << 62


class OpaqueSegment(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="opaque"):
    """Bytes [start, stop) of the original in one frame for each `chunk_bytes`."""

    start: int
    stop: int
    chunk_bytes: int
    frames: list[int]

    def check(self) -> None:
        """Raise FormatError if it makes no sense."""
        if not (0 <= self.start < self.stop <= _MAX and 1 <= self.chunk_bytes <= MAX_GROUP_BYTES):
            raise FormatError(f"opaque bytes {self.start} to {self.stop} in chunks of {self.chunk_bytes}")
        if len(self.frames) != self.groups:
            raise FormatError(f"{len(self.frames)} frames for {self.groups} chunks")

    @property
    def groups(self) -> int:
        """Number of groups of frames: one of a chunk."""
        return -(-(self.stop - self.start) // self.chunk_bytes)

    def group_range(self, group: int) -> tuple[int, int]:
        """Bytes of the original."""
        start = self.start + group * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.stop)


class FloatsSegment(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="floats"):
    """A tensor of the original as planes: of each `group_rows` rows, of each slot, a frame for each plane.

    With the transform ``exponent`` one frame precedes these: the byte planes of the offsets [slots, channels].
    """

    start: int
    dtype: str
    rows: int
    slots: int
    channels: int
    transform: Transform
    group_rows: int
    frames: list[int]

    def check(self) -> None:
        """Raise FormatError if it makes no sense."""
        if max(self.start, self.rows, self.slots, self.channels) > _MAX:
            raise FormatError("a tensor of absurd size")
        floats = self.floats
        if not (1 <= self.group_rows <= self.rows and self.group_rows * floats.row_bytes <= MAX_GROUP_BYTES):
            raise FormatError(f"groups of {self.group_rows} rows of {floats.row_bytes} bytes")
        expected = self.groups * self.slots * floats.words.itemsize + self.has_offsets
        if len(self.frames) != expected:
            raise FormatError(f"{len(self.frames)} frames where {expected} belong")

    @property
    def floats(self) -> Floats:
        """The tensor."""
        return Floats(self.start, self.dtype, self.rows, self.slots, self.channels)

    @property
    def has_offsets(self) -> bool:
        """Whether the first frame holds offsets."""
        return self.transform == "exponent"

    @property
    def stop(self) -> int:
        """Byte behind the tensor."""
        return self.floats.stop

    @property
    def groups(self) -> int:
        """Number of groups of frames: the planes of all slots of `group_rows` rows."""
        return -(-self.rows // self.group_rows)

    def slot_bytes(self) -> list[int]:
        """Stored bytes of each slot, without the offsets that they share a frame for."""
        planes = self.floats.words.itemsize
        frames = self.frames[self.has_offsets :]
        found = [0] * self.slots
        for number, length in enumerate(frames):
            found[number // planes % self.slots] += length
        return found

    def group_range(self, group: int) -> tuple[int, int]:
        """Bytes of the original."""
        row_bytes = self.floats.row_bytes
        first, behind = self.group_row_range(group)
        return self.start + first * row_bytes, self.start + behind * row_bytes

    def group_row_range(self, group: int) -> tuple[int, int]:
        """Rows of the tensor."""
        first = group * self.group_rows
        return first, min(first + self.group_rows, self.rows)


Segment = OpaqueSegment | FloatsSegment


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of a file's description.

    Attributes:
        codec: that wrote it.
        size: of the original in bytes.
        xxh3: xxh3-128 of the original.
        segments: they tile the original; their frames follow each other in the file.
        statistics: one for each slot of the hidden states, if the writer knew them.
    """

    codec: str
    size: int
    xxh3: str
    segments: list[Segment]
    statistics: list[SlotStatistics] = []

    def check(self, *, file_bytes: int, tail_bytes: int) -> None:
        """Raise FormatError if the file cannot be so."""
        at = 0
        for segment in self.segments:
            segment.check()
            if segment.start != at:
                raise FormatError(f"a segment starts at byte {segment.start} of the original instead of {at}")
            at = segment.stop
        if at != self.size:
            raise FormatError(f"the segments hold {at} bytes of {self.size}")
        if any(length < 1 for segment in self.segments for length in segment.frames):
            raise FormatError("a frame has no bytes")
        stored = HEAD_BYTES + sum(map(_sum_of_frames, self.segments)) + tail_bytes
        if stored != file_bytes:
            raise FormatError(f"its frames have {stored} bytes, the file {file_bytes}")

    def placed(self) -> Iterator[tuple[Segment, list[int]]]:
        """Each segment with where its frames start in the file, and a last entry for where they end."""
        at = HEAD_BYTES
        for segment in self.segments:
            starts = [at]
            for length in segment.frames:
                at += length
                starts.append(at)
            yield segment, starts


def _sum_of_frames(segment: Segment) -> int:
    return sum(segment.frames)


def head_frame(codec: str) -> bytes:
    """The first frame."""
    return skippable_frame(_HEAD, f"hsz 1 {codec}\n".encode().ljust(HEAD_BYTES - 8))


def read_head(data: bytes) -> str:
    """The codec that the first `HEAD_BYTES` bytes of a file name.

    Raises:
        FormatError: the file is of another format or version.
    """
    try:
        match skippable_payload(_HEAD, data).decode("ascii").split():
            case ["hsz", "1", codec]:
                return codec
            case ["hsz", version, *_]:
                raise FormatError(f"an hsz file of version {version}, not 1")
            case _:
                raise FormatError("not an hsz file")
    except (FormatError, UnicodeDecodeError) as error:
        raise FormatError(str(error) if "version" in str(error) else "not an hsz file") from error


def tail_frame(index: Index) -> bytes:
    """The last frame.

    Raises:
        FormatError: the index grew too large for readers.
    """
    data = msgspec.json.encode(index)
    if len(data) > MAX_INDEX_BYTES:
        raise FormatError(f"an index of {len(data)} bytes, more than {MAX_INDEX_BYTES}")
    return skippable_frame(_TAIL, data + TAIL_SUFFIX.pack(xxhash.xxh3_64_intdigest(data), len(data), _MARK))


def index_bytes(suffix: bytes) -> int:
    """Size of the tail frame of a file that ends with `suffix`, the last `TAIL_SUFFIX.size` bytes.

    Raises:
        FormatError: the file is cut, or of another format.
    """
    if len(suffix) != TAIL_SUFFIX.size:
        raise FormatError("not a whole hsz file")
    _, length, mark = TAIL_SUFFIX.unpack(suffix)
    if mark != _MARK:
        raise FormatError("not a whole hsz file: its index is missing at the end")
    if length > MAX_INDEX_BYTES:
        raise FormatError(f"an index of {length} bytes, more than {MAX_INDEX_BYTES}")
    return 8 + int(length) + TAIL_SUFFIX.size


def read_tail(tail: bytes, *, file_bytes: int) -> Index:
    """The checked index from the tail frame of a file of `file_bytes`.

    Raises:
        FormatError: it is damaged or contradicts itself.
    """
    payload = skippable_payload(_TAIL, tail)
    data = payload[: -TAIL_SUFFIX.size]
    digest, length, _ = TAIL_SUFFIX.unpack(payload[-TAIL_SUFFIX.size :])
    if length != len(data) or digest != xxhash.xxh3_64_intdigest(data):
        raise FormatError("the index of the hsz file is damaged")
    try:
        index = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"the index of the hsz file is not understood: {error}") from error
    index.check(file_bytes=file_bytes, tail_bytes=len(tail))
    return index


_DECODER = msgspec.json.Decoder(Index)
