"""Part files appear whole or not at all, whatever the disk does."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from captures import template
from hs_formats.failure_ring import FailureReader, FailureRing
from hs_server.capture.ring import HostRing
from hs_server.capture.writer import Chunk, FailedRids, PartJob, PartWriter, write_part


def job(row: int, rows: int) -> tuple[PartJob, HostRing]:
    """A part of random rows and the ring of one slot that holds them."""
    meta = template(rid=f"hs-0123abcd-{row:08d}-00", start=0, stop=rows, n=rows)
    ring = HostRing(1, (rows, 3, 8), torch.bfloat16, pinned=False)
    slot = ring.take(timeout_s=0)
    assert slot is not None
    slot.rows.copy_(torch.randn(rows, 3, 8))
    return PartJob(meta, bytes(8 * rows), (Chunk(slot, 0, rows, lambda: None),)), ring


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "scratch"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], check=True)
    yield mount
    subprocess.run(["umount", mount], check=True)


@pytest.mark.tmpfs
def test_a_full_scratch_fails_that_request_only_and_leaves_no_partial(small_tmpfs: Path) -> None:
    ring = FailureRing(small_tmpfs / "failed-1-r0", slots=16)
    failed = FailedRids(ring)
    writer = PartWriter(small_tmpfs, failed, threads=1)
    sizes = {1: 1000, 2: 100_000, 3: 1000}  # the second is larger than the file system
    jobs = [job(row, rows) for row, rows in sizes.items()]
    for item, _ in jobs:
        writer.submit(item)
    writer.close()
    assert sorted(path.name[12:20] for path in small_tmpfs.glob("*.pt")) == ["00000001", "00000003"]
    assert not list(small_tmpfs.glob(".*.tmp"))
    (failure,) = FailureReader(small_tmpfs / "failed-1-r0").poll()
    assert failure.rid == "hs-0123abcd-00000002-00"
    assert os.strerror(errno.ENOSPC) in failure.reason
    assert all(owner.take(timeout_s=0) for _, owner in jobs)  # memory is given back in every case
    ring.close()


def test_a_vanished_folder_is_a_recorded_failure(tmp_path: Path) -> None:
    ring = FailureRing(tmp_path / "failed-1-r0", slots=4)
    writer = PartWriter(tmp_path / "gone", FailedRids(ring), threads=1)
    writer.submit(job(1, 2)[0])
    writer.close()
    assert [failure.rid for failure in FailureReader(tmp_path / "failed-1-r0").poll()] == ["hs-0123abcd-00000001-00"]
    ring.close()


def test_writing_the_same_part_again_replaces_it_whole(tmp_path: Path) -> None:
    first, second = job(1, 4)[0], job(1, 4)[0]
    write_part(tmp_path, first)
    write_part(tmp_path, second)
    (path,) = tmp_path.iterdir()
    assert bytes(second.states()[0]) in path.read_bytes()


def test_parts_are_private_whatever_the_umask(tmp_path: Path) -> None:
    item, _ = job(1, 2)
    before = os.umask(0)
    try:
        write_part(tmp_path, item)
    finally:
        os.umask(before)
    (part,) = tmp_path.iterdir()
    assert part.stat().st_mode & 0o777 == 0o600


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    item, _ = job(1, 2)
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / f".{item.meta.name}.{item.meta.nonce}.tmp").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        write_part(folder, item)
    assert target.read_text() == "precious"


def test_a_device_error_fails_the_request_and_gives_the_slot_back(tmp_path: Path) -> None:
    ring = FailureRing(tmp_path / "failed-1-r0", slots=4)
    item, owner = job(1, 2)

    def broken() -> None:
        raise RuntimeError("CUDA error: device-side assert")

    chunk = item.chunks[0]
    writer = PartWriter(tmp_path, FailedRids(ring), threads=1)
    writer.submit(PartJob(item.meta, item.input_ids, (Chunk(chunk.slot, 0, 2, broken),)))
    writer.close()
    (failure,) = FailureReader(tmp_path / "failed-1-r0").poll()
    assert "device-side assert" in failure.reason
    assert owner.take(timeout_s=0) is not None
    assert not list(tmp_path.glob(".*.tmp"))
    ring.close()
