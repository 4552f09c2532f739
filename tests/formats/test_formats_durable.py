from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hs_formats.durable import (
    fsync_folder,
    link_durable,
    make_folders,
    replace_file,
    write_all,
    write_durable,
)
from small_tmpfs import fill, small_tmpfs


@given(st.lists(st.binary(max_size=50), max_size=40), st.integers(1, 60))
def test_write_all_continues_short_writes(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "written"
    real = os.writev

    def short(fd: int, views: list[memoryview]) -> int:
        return real(fd, [b"".join(views)[:limit]])

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", short)
        assert write_all(fd, pieces) == sum(map(len, pieces))
    os.close(fd)
    assert path.read_bytes() == b"".join(pieces)


def test_write_all_takes_more_pieces_than_one_call_can(tmp_path: Path) -> None:
    pieces = [b"%05d" % number for number in range(5000)]
    fd = os.open(tmp_path / "many", os.O_WRONLY | os.O_CREAT)
    write_all(fd, [memoryview(piece) for piece in pieces])
    os.close(fd)
    assert (tmp_path / "many").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("replace", [write_durable, replace_file])
def test_a_replaced_file_is_the_old_or_the_new_and_leaves_nothing(tmp_path: Path, replace: object) -> None:
    path = tmp_path / "file"
    assert callable(replace)
    replace(path, b"one")
    replace(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.tmpfs
@pytest.mark.parametrize("replace", [write_durable, replace_file, link_durable])
def test_a_full_file_system_keeps_the_old_file_and_no_temporary(tmp_path: Path, replace: object) -> None:
    with small_tmpfs(tmp_path / "full", options="size=64k") as folder:
        (folder / "file").write_bytes(b"old")
        fill(folder)
        assert callable(replace)
        with pytest.raises(OSError, match="No space left"):
            replace(folder / "file", b"x" * 9000)
        assert (folder / "file").read_bytes() == b"old"
        assert sorted(os.listdir(folder)) == ["ballast", "file"]


def test_only_the_first_link_makes_the_file(tmp_path: Path) -> None:
    assert link_durable(tmp_path / "file", b"one")
    assert not link_durable(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


def test_order_of_a_durable_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(fd: int) -> None:
        calls.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "fsync file")  # noqa: PTH112
        real_fsync(fd)

    def rename(self: Path, target: Path) -> Path:
        calls.append("rename")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    write_durable(tmp_path / "file", b"x")
    assert calls == ["fsync file", "rename", "fsync folder"]
    calls.clear()
    make_folders(tmp_path / "a" / "b" / "c")
    make_folders(tmp_path / "a" / "b" / "c")
    assert calls == ["fsync folder"] * 3


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file" / "below")
    with pytest.raises(OSError, match="file"):
        make_folders(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        fsync_folder(tmp_path / "file")
