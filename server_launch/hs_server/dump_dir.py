"""The scratch folder: made 0700, and refused where somebody else could read or swap what is written there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from hs_formats.control import ControlFolder
from hs_formats.errors import FormatError
from hs_server import env
from hs_server.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_DUMP_DIR", "default_dump_dir", "file_system_type", "prepare_dump_dir"]

DEFAULT_DUMP_DIR = Path("/dev/shm/sglang_hs")  # noqa: S108 - made 0700 and checked below


def default_dump_dir(environment: Mapping[str, str]) -> Path:
    """The dump folder where none is named."""
    return Path(environment.get(env.DUMP_DIR) or DEFAULT_DUMP_DIR)


def prepare_dump_dir(folder: Path) -> None:
    """Make `folder` and its control folder, or check what is there.

    Raises:
        RefusedError: it is a link, no folder, another user's, open to others, or cannot be made or written.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RefusedError(f"dump folder {folder}: {error.strerror}") from None
    else:
        _check(folder, found)
    try:
        ControlFolder(folder).create()
        _check(folder, folder.lstat())
        probe = ControlFolder(folder).root / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except FormatError as error:
        raise RefusedError(f"dump folder {folder}: {error}") from None
    except OSError as error:
        raise RefusedError(
            f"dump folder {folder} cannot be made or written: {error.strerror}\n  choose another with --dump-dir"
        ) from None


def file_system_type(folder: Path) -> str:
    """The type of the file system that `folder` lies on, such as tmpfs; empty where it cannot be told."""
    resolved = str(folder.resolve())
    best_length, best_type = -1, ""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        point = head.split(" ")[4].replace("\\040", " ")
        if (resolved == point or resolved.startswith(point.rstrip("/") + "/")) and len(point) >= best_length:
            best_length, best_type = len(point), tail.split(" ")[0]
    return best_type


def _check(folder: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise RefusedError(f"dump folder {folder} is a symbolic link\n  give the folder itself with --dump-dir")
    if not stat.S_ISDIR(found.st_mode):
        raise RefusedError(f"dump folder {folder} is not a folder\n  remove it, or choose another with --dump-dir")
    if found.st_uid != os.geteuid():
        raise RefusedError(
            f"dump folder {folder} belongs to user {found.st_uid}, not to you ({os.geteuid()})\n"
            "  choose another with --dump-dir"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise RefusedError(
            f"dump folder {folder} is open to others (mode {stat.S_IMODE(found.st_mode):04o})\n  chmod 700 {folder}"
        )
