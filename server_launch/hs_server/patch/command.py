"""`hs-server patch`: what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

from hs_formats.errors import PreflightError
from hs_server.patch.installation import Installation, find_installation, other_installations

__all__ = ["run_patch"]


def run_patch(folder: Path | None, *, check: bool = False, revert: bool = False) -> int:
    """Patch, check or revert the SGLang in `folder`, or the installed one; returns the exit code.

    Raises:
        HsError: the file is not one that can be patched or given back; or, with `check`, source mode would not work.
    """
    installation = find_installation(folder)
    version = installation.version()
    if check:
        if (reason := installation.reason_not_patched()) is not None:
            raise PreflightError(reason)
        _say(f"patched   {installation.file} (SGLang {version})")
        _say(f"          sha256 {installation.sha256()}")
    elif revert:
        changed, removed = installation.revert()
        _say(f"{'reverted ' if changed else 'unpatched'} {installation.file} (SGLang {version})")
        _say_removed(removed)
    else:
        changed, removed = installation.patch()
        _say(f"patched   {installation.file} (SGLang {version}){'' if changed else ', as before'}")
        _say_removed(removed)
        _say("          dormant unless SGLANG_HS_DUMP_DIR is set; used by hs-server launch --capture-mode source")
    _say_others(installation)
    return 0


def _say_removed(files: int) -> None:
    if files:
        _say(f"          {files} compiled {'file' if files == 1 else 'files'} removed")


def _say_others(installation: Installation) -> None:
    others = other_installations(installation)
    imported: Path | None = None
    try:
        imported = find_installation().package
    except PreflightError:
        others = []
    for path in others:
        first = imported is not None and path.resolve() == imported.resolve()
        note = "and this interpreter imports that one" if first else "which this interpreter does not import"
        _say(f"note      there is another SGLang in {path}, {note}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
