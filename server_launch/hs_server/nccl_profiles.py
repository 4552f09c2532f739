"""NCCL profiles: files of variables that a launch sets where the surrounding environment does not.

A profile is ``NAME.env`` in the user's folder or in this package's, or any file by its path. Lines are
``NCCL_NAME=value``; empty ones and those that begin with ``#`` say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hs_formats.errors import UsageError

__all__ = ["find_nccl_profile", "nccl_environment", "nccl_profile_names", "parse_nccl_profile", "user_folder"]

_BUILT_IN = Path(__file__).resolve().parent / "nccl"
_SUFFIX = ".env"
_LINE = re.compile(r"(NCCL_[A-Z0-9_]+)=(\S+)", re.ASCII)


def user_folder(environment: Mapping[str, str]) -> Path:
    """Where users put profiles of their own: ``hs-extract/nccl`` in the XDG configuration folder."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "hs-extract" / "nccl"


def nccl_profile_names(environment: Mapping[str, str]) -> list[str]:
    """All profiles that can be given by name."""
    folders = (_BUILT_IN, user_folder(environment))
    return sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob(f"*{_SUFFIX}")})


def find_nccl_profile(name: str, environment: Mapping[str, str]) -> Path:
    """The file of the profile `name`, which may be a path; a user's own file wins over a built-in one.

    Raises:
        UsageError: there is none.
    """
    if "/" in name or name.endswith(_SUFFIX):
        path = Path(name)
        if path.is_file():
            return path
        raise UsageError(f"--nccl-profile {name}: no such file")
    for folder in (user_folder(environment), _BUILT_IN):
        path = folder / f"{name}{_SUFFIX}"
        if path.is_file():
            return path
    raise UsageError(
        f"no NCCL profile is called {name!r}\n"
        f"  profiles: {', '.join(nccl_profile_names(environment))}; "
        f"add {name}{_SUFFIX} to {user_folder(environment)}, or give a path"
    )


def parse_nccl_profile(text: str, *, where: str) -> dict[str, str]:
    """The variables in the text of a profile.

    Raises:
        UsageError: a line is no setting of NCCL's, or sets a variable again; names the line.
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise UsageError(f"{where}:{number}: {line[:60]!r} is not NCCL_NAME=value")
        if match[1] in found:
            raise UsageError(f"{where}:{number}: {match[1]} is set twice")
        found[match[1]] = match[2]
    return found


def nccl_environment(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the profile `name`, each only where `environment` does not have it.

    Raises:
        UsageError: there is no such profile, or it cannot be used.
    """
    path = find_nccl_profile(name, environment)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--nccl-profile {path}: {error}") from None
    settings = parse_nccl_profile(text, where=str(path))
    return {variable: value for variable, value in settings.items() if variable not in environment}
