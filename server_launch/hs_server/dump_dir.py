"""The scratch folder: made 0700, and refused where somebody else could read or swap what is written there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hs_formats.control import ControlFolder, against_others
from hs_formats.doctor_pass import forget_dead_passes
from hs_formats.errors import FormatError, PreflightError

__all__ = ["file_system_type", "prepare_dump_dir"]


def prepare_dump_dir(folder: Path) -> None:
    """Make `folder` and its control folder, or check what is there.

    Raises:
        PreflightError: it is a link, no folder, another user's, open to others, or cannot be made or written.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise PreflightError(f"scratch {folder}: {error.strerror}") from None
    else:
        _check(folder, found)
    try:
        ControlFolder(folder).create()
        # Each dead scheduler process would keep half a megabyte of scratch for ever.
        ControlFolder(folder).remove_dead_servers()
        forget_dead_passes(ControlFolder(folder))
        _check(folder, folder.lstat())
        probe = ControlFolder(folder).root / f".probe-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except FormatError as error:
        raise PreflightError(f"scratch {folder}: {error}") from None
    except OSError as error:
        raise PreflightError(
            f"scratch {folder} cannot be made or written: {error.strerror}\n  choose another with --dump-dir"
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
        raise PreflightError(f"scratch {folder} is a symbolic link\n  give the folder itself with --dump-dir")
    if not stat.S_ISDIR(found.st_mode):
        raise PreflightError(f"scratch {folder} is not a folder\n  remove it, or choose another with --dump-dir")
    if found.st_uid != os.geteuid():
        raise PreflightError(
            f"scratch {folder} belongs to user {found.st_uid}, not to you ({os.geteuid()})\n"
            "  choose another with --dump-dir"
        )
    remedy = against_others(folder, found.st_mode)
    if remedy is not None:
        raise PreflightError(f"scratch {folder} is open to others (mode {stat.S_IMODE(found.st_mode):04o})\n  {remedy}")
