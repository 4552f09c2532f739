"""What one worker does with one part: open, check, encode, store under its final name, or quarantine it.

Nothing here is shared between threads. A stored file is left under a temporary name, to be made durable and put in
place together with others (`hs_mover.syncer`) before the manifest line is written; until then the source stays where
it is, so a crash or an error at any point only means that the same part is looked at again.
"""

from __future__ import annotations

import io
import json
import os
import stat
import time
import zipfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.layout import Floats
from hs_formats.manifest import ManifestLine, PartStatus
from hs_formats.names import PartName
from hs_formats.part import PartInfo, PartMeta, inspect_part
from hs_formats.stored import CODECS, stored_blocks, stored_codec
from hs_mover.checks import BadPart, PartDigest, SourceChanged, read_pieces
from hs_mover.task import Identity, Known, LeftAlone, Outcome, Reference, SourceError, Task
from hs_mover.written import Written, drop, put_in_place, sync_file, write_file

__all__ = [
    "PartWork",
    "manifest_line",
    "run_task",
]

_SUFFIXES = tuple(dict.fromkeys(codec.suffix for codec in CODECS.values()))
_FLOATS = ("bfloat16", "float16", "float32")

_WHOLE_BYTES = 256 << 10
"""A part of at most so many bytes is read in one call, before anything is known of it."""


def run_task(task: Task) -> Outcome:
    """Deal with one part.

    Raises:
        LeftAlone: not a regular file of ours.
        SourceChanged: the file is still being written, or too young to be called bad.
        SourceError: the source cannot be read.
        OSError: the destination failed; nothing of the part is left there.
    """
    try:
        fd = os.open(task.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if task.source.is_symlink():
            raise LeftAlone("is a symbolic link") from error
        raise SourceError(str(error)) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise LeftAlone("is not a regular file")
        if found.st_uid != os.geteuid():
            raise LeftAlone(f"belongs to user {found.st_uid}, not to {os.geteuid()}")
        return _work(task, fd, Identity.of(found)).run()
    finally:
        os.close(fd)


def _work(task: Task, fd: int, identity: Identity) -> PartWork:
    if task.destination.local:
        return PartWork(task, fd, identity)
    from hs_mover.remote_work import RemoteWork

    return RemoteWork(task, fd, identity)


class PartWork:
    """One pass over one open source, into a folder."""

    def __init__(self, task: Task, fd: int, identity: Identity) -> None:
        self.task = task
        self.fd = fd
        self.identity = identity
        self.size = identity.size_bytes
        self._whole = b""

    def run(self) -> Outcome:
        try:
            info = self._inspect()
            self._fits(info.meta)
        except BadPart as bad:
            return self._bad(str(bad), PartDigest(None), None)
        digest = PartDigest(info)
        if self.task.known is not None:
            return self._again(digest, info)
        before = self.stored_before(digest, info)
        if before is not None:
            return before
        if self.task.reference is not None:
            return self._compare(self.task.reference, digest, info)
        return self._store(digest, info)

    def stored_before(self, digest: PartDigest, info: PartInfo) -> Outcome | None:
        """What is to be done where the destination has a file of this name already; None where it has none."""
        own = self.task.codec.suffix
        stem = str(self._place(own)[0]).removesuffix(own)
        for suffix in _SUFFIXES:  # the codec may be another one than when it was stored
            if os.path.exists(stem + suffix):  # noqa: PTH110 - for each part, so no Path
                final, relative = self._place(suffix)
                known = None if self.task.find_line is None else self.task.find_line(self.task.name)
                if known is not None:
                    return self._again(digest, info, known)
                return self._adopt(final, relative, digest, info)
        return None

    # -- reading

    def _inspect(self) -> PartInfo:
        try:
            if self.size <= _WHOLE_BYTES:
                self._whole = os.pread(self.fd, self.size, 0)
                info = inspect_part(io.BytesIO(self._whole), self.task.name)
            else:
                with os.fdopen(os.dup(self.fd), "rb") as file:
                    info = inspect_part(file, self.task.name)
        except FormatError as error:
            raise BadPart(str(error)) from error
        except (NotImplementedError, RuntimeError, OverflowError, zipfile.LargeZipFile, OSError) as error:
            # Damaged directories lead zipfile astray in many ways: unknown versions, encryption, offsets before 0.
            raise BadPart(f"not a whole zip file: {error}") from error
        if info.meta.dtype not in _FLOATS or not Floats.codable(
            info.meta.dtype, info.meta.slots, info.meta.hidden_size
        ):
            raise BadPart(f"hidden states of {info.meta.dtype} with {info.meta.hidden_size} channels")
        return info

    def _fits(self, meta: PartMeta) -> None:
        expected = self.task.expected
        if expected is None:
            return
        for what, mine, theirs in (
            ("boundaries", meta.boundaries, expected.boundaries),
            ("config_hash", meta.config_hash, expected.config_hash),
            ("dtype", meta.dtype, expected.dtype),
            ("hidden size", meta.hidden_size, expected.hidden_size),
        ):
            if mine != theirs:
                raise BadPart(f"{what} {mine} where the dataset has {theirs}")

    def _pieces(self, digest: PartDigest, *, paced: bool = True) -> Iterable[memoryview]:
        try:
            pace = self.task.pace if paced else _no_pace
            yield from read_pieces(self._read_into, self.size, digest, pace=pace)
        except OSError as error:
            raise SourceError(str(error)) from error

    def _read_into(self, into: memoryview, at: int) -> int:
        known = self._whole[at : at + len(into)]
        if known:
            into[: len(known)] = known
            return len(known)
        return os.preadv(self.fd, [into], at)

    def _read_through(self, digest: PartDigest) -> None:
        lap_s = time.monotonic()
        for _ in self._pieces(digest):
            read_s = time.monotonic()
            self.task.meter.add(encoding_s=read_s - lap_s)
            lap_s = read_s
        self._unchanged()

    def _unchanged(self) -> None:
        if Identity.of(os.fstat(self.fd)) != self.identity:
            raise SourceChanged("the file changed while it was read")

    # -- writing

    def _place(self, suffix: str) -> tuple[Path, str]:
        """Where the part goes when it is stored with a codec of that suffix."""
        name, paths = self.task.name, self.task.paths
        if paths is None:
            stem = str(name).removesuffix(".pt")
            return self.task.destination.unclaimed(name.rid.run) / f"{stem}{suffix}", ""
        relative = paths.stored_name(name, suffix)
        return paths.root / relative, relative

    def _store(self, digest: PartDigest, info: PartInfo) -> Outcome:
        final, relative = self._place(self.task.codec.suffix)
        self.task.destination.make(final.parent)
        encode, layout = self.task.codec.encode, digest.layout(self.size)
        written = self._write(final, encode(self._pieces(digest), self.size, layout=layout, facts=digest.facts))
        try:
            self._unchanged()
        except BaseException:
            drop(written)
            raise
        if digest.problem:
            drop(written)
            return self._bad(digest.problem, digest, info)
        return self._outcome("stored", digest, info, path=relative, written=written, folder=final.parent)

    def _write(self, final: Path, pieces: Iterable[bytes | memoryview]) -> Written:
        return write_file(final, pieces, mover_id=self.task.mover_id, meter=self.task.meter)

    def _adopt(self, final: Path, relative: str, digest: PartDigest, info: PartInfo) -> Outcome:
        """A final file without a line: ours, from before a crash."""
        self._read_through(digest)
        if digest.problem:
            return self._bad(digest.problem, digest, info)
        try:
            stored, codec = xxh3_hex(stored_blocks(final)), stored_codec(final)
        except FormatError:
            final.unlink()  # no line vouches for it and the source is whole
            return self._store(PartDigest(info), info)
        if stored != digest.xxh3:
            return self._conflict(digest, info, "a file of this name with other bytes is stored already")
        size = final.stat().st_size
        return self._outcome("stored", digest, info, path=relative, codec=codec, stored_bytes=size, folder=final.parent)

    def _again(self, digest: PartDigest, info: PartInfo, known: Known | None = None) -> Outcome:
        """The manifest has a line for this name: the source is a leftover, or another file."""
        known = known if known is not None else self.task.known
        self._read_through(digest)
        if known is not None and known.xxh3 == digest.xxh3:
            return Outcome(identity=self.identity, line=None, note="was stored before")
        return self._conflict(digest, info, "the manifest has a part of this name with other bytes")

    def _compare(self, reference: Reference, digest: PartDigest, info: PartInfo) -> Outcome:
        """Another rank's copy of rows that are stored already."""
        self._read_through(digest)
        if digest.problem:
            return self._bad(digest.problem, digest, info)
        if reference.verdict:
            return self._quarantine(reference.verdict, digest, info)
        mine = f"r{self.task.name.rank:02d}"
        for what, a, b in (
            ("rows", digest.rows_xxh3, reference.rows_xxh3),
            ("token ids", digest.ids_xxh3, reference.ids_xxh3),
        ):
            if a != b:
                reason = f"ranks disagree: r{reference.rank:02d} has {what} {b[:8]}, {mine} has {a[:8]}"
                return self._quarantine(reason, digest, info)
        return self._outcome("equal", digest, info)

    def _conflict(self, digest: PartDigest, info: PartInfo | None, reason: str) -> Outcome:
        return self._quarantine(f"conflict: {reason}", digest, info, flags=["conflict"])

    def _bad(self, reason: str, digest: PartDigest, info: PartInfo | None) -> Outcome:
        if not self.task.settled:
            raise SourceChanged(reason)
        return self._quarantine(reason, digest, info)

    def _quarantine(
        self, reason: str, digest: PartDigest, info: PartInfo | None, *, flags: list[str] | None = None
    ) -> Outcome:
        """Keep the bytes as they are, beside a note that says why."""
        known = self.task.known
        digest = PartDigest(info)
        for _ in self._pieces(digest, paced=False):
            pass
        self._unchanged()
        if known is not None and known.xxh3 == digest.xxh3:
            return Outcome(identity=self.identity, line=None, note="was stored before")
        path, folder = self.keep_bad(reason, digest.xxh3)
        return self._outcome(
            "quarantined",
            digest,
            info,
            path=path,
            stored_bytes=self.size,
            folder=folder,
            reason=reason,
            flags=flags,
        )

    def keep_bad(self, reason: str, xxh3: str) -> tuple[str, Path | None]:
        """Keep the source's bytes; returns the path for the manifest line, and the folder to sync."""
        paths, name = self.task.paths, self.task.name
        root = self.task.destination.unclaimed(name.rid.run) if paths is None else paths.root
        folder = root / "quarantine"
        self.task.destination.make(folder)
        kept = self._quarantine_name(folder, xxh3)
        if not kept.exists():
            self._keep(kept, reason, xxh3)
        return f"quarantine/{kept.name}", folder

    def _quarantine_name(self, folder: Path, xxh3: str) -> Path:
        """A free name, or that of the same bytes from before a crash."""
        count = 1
        kept = folder / str(self.task.name)
        while kept.exists() and (kept.stat().st_size != self.size or xxh3_hex([kept.read_bytes()]) != xxh3):
            count += 1
            kept = folder / f"{self.task.name}.{count}"
        return kept

    def _note(self, reason: str, xxh3: str) -> bytes:
        note = {
            "part": str(self.task.name),
            "reason": reason,
            "xxh3": xxh3,
            "bytes": self.size,
            "mover": self.task.mover_id,
            "at": _now(),
        }
        return json.dumps(note, indent=1).encode() + b"\n"

    def _keep(self, kept: Path, reason: str, xxh3: str) -> None:
        text = self._note(reason, xxh3)
        for final, pieces in (
            (kept.with_name(f"{kept.name}.reason.json"), [text]),
            (kept, self._pieces(PartDigest(None), paced=False)),
        ):
            written = self._write(final, pieces)
            try:
                sync_file(written)
            except OSError:
                drop(written)
                raise
            put_in_place(written)

    def _outcome(
        self,
        status: PartStatus,
        digest: PartDigest,
        info: PartInfo | None,
        *,
        path: str = "",
        codec: str = "",
        stored_bytes: int = 0,
        written: Written | None = None,
        folder: Path | None = None,
        reason: str = "",
        flags: list[str] | None = None,
    ) -> Outcome:
        if written is not None:
            stored_bytes = written.size_bytes
        line = manifest_line(
            self.task.name, status, digest, info, raw_bytes=self.size, codec=codec or self.task.codec.name, path=path,
            stored_bytes=stored_bytes, reason=reason, flags=flags,
        )  # fmt: skip
        return Outcome(
            identity=self.identity,
            line=line if self.task.paths is not None else None,
            claimed=self.task.paths is not None,
            written=written,
            folders=() if folder is None else (folder,),
            note=reason or status,
            quarantined=status == "quarantined",
        )


def manifest_line(
    name: PartName,
    status: PartStatus,
    digest: PartDigest,
    info: PartInfo | None,
    *,
    raw_bytes: int,
    codec: str,
    path: str,
    stored_bytes: int,
    reason: str = "",
    flags: list[str] | None = None,
) -> ManifestLine:
    """The manifest line of a part that was read through `digest`."""
    codecs = {"stored": codec, "equal": "", "quarantined": "none"}
    return ManifestLine(
        part=str(name),
        status=status,
        path=path,
        raw_bytes=raw_bytes,
        stored_bytes=stored_bytes,
        codec=codecs[status],
        xxh3=digest.xxh3,
        rows_xxh3=digest.rows_xxh3,
        ids_xxh3=digest.ids_xxh3,
        writers="first" if info is None else info.meta.writers,
        expected_ranks=[] if info is None else info.meta.expected_ranks,
        flags=flags or [],
        reason=reason.encode("utf-8", "replace").decode(),
        stored_at=_now(),
    )


def _no_pace(count: int) -> None:
    del count


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
