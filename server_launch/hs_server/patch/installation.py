"""An installation of SGLang as the patch sees it: its file, whether that is patched, and what would run."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from hs_formats.durable import write_durable
from hs_formats.errors import PreflightError, UsageError
from hs_server.patch.bytecode import compiled_files, remove_compiled, would_run
from hs_server.patch.source import PATCH_VERSION, PatchError, apply_patch, inspect_patch, take_out

__all__ = ["Installation", "find_installation", "other_installations"]

PATCHED_FILE = Path("srt", "models", "deepseek_v2.py")
"""Below the package folder."""

_REINSTALL = "install SGLang anew (pip install --force-reinstall --no-deps sglang==VERSION), or use plugin mode"


@dataclass(frozen=True, slots=True)
class Installation:
    """One `sglang` package folder."""

    package: Path

    @property
    def file(self) -> Path:
        """The file that the patch is for."""
        return self.package / PATCHED_FILE

    def version(self) -> str:
        """From its metadata beside the package, else from its own version file; "unknown" where neither says."""
        for folder in self.package.parent.glob("sglang-*.dist-info"):
            return folder.name.removeprefix("sglang-").removesuffix(".dist-info")
        for name in ("_version.py", "version.py"):
            try:
                text = (self.package / name).read_text(encoding="utf-8")
            except OSError:
                continue
            if found := re.search(r"""^\s*(?:__)?version(?:__)?\s*=.*?["'](\d[^"']*)["']""", text, re.MULTILINE):
                return found[1]
        return "unknown"

    def sha256(self) -> str:
        """Of the file as it is.

        Raises:
            PreflightError: it cannot be read.
        """
        return hashlib.sha256(self._read().encode()).hexdigest()

    def reason_not_patched(self) -> str | None:
        """Why source mode would not work with this installation, with the remedy; None where it would.

        Raises:
            PreflightError: the file cannot be read.
        """
        try:
            found = inspect_patch(self._read())
        except PatchError as error:
            return f"{self.file}: {error}\n  {_REINSTALL}"
        if found is None:
            return f"{self.file} is not patched\n  hs-server patch puts the capture in, and with --revert takes it out"
        if found.damage:
            return f"{self.file}: {found.damage}\n  {_REINSTALL}"
        if found.version != PATCH_VERSION:
            return (
                f"{self.file} carries patch {found.version}, this hs-extract needs {PATCH_VERSION}\n"
                "  hs-server patch replaces it"
            )
        if (stale := self.stale_bytecode()) is not None:
            return f"Python would run {stale}, which is older than {self.file}\n  hs-server patch removes it"
        return None

    def stale_bytecode(self) -> Path | None:
        """A compiled file that Python would run although it was not made from the file as it is patched now."""
        text = self._read()
        try:
            found = inspect_patch(text)
        except PatchError:
            return None
        mark = found.sha256_without.encode() if found else b"_hs_capture"
        for compiled in compiled_files(self.file):
            try:
                if would_run(compiled, self.file) and (mark in compiled.read_bytes()) != bool(found):
                    return compiled
            except OSError:
                continue
        return None

    def patch(self) -> tuple[bool, int]:
        """Put the patch in, or replace that of another release; (whether the file changed, compiled files removed).

        Raises:
            PreflightError: the file is not one that can be patched; nothing was changed then.
        """
        text = self._read()
        try:
            found = inspect_patch(text)
            if found is not None and found.damage:
                raise PatchError(found.damage)
            before = take_out(text)
            self._check_as_installed(before)
            after = apply_patch(before)
        except PatchError as error:
            raise PreflightError(f"{self.file} is left as it is: {error}\n  {_REINSTALL}") from None
        return self._write(text, after)

    def revert(self) -> tuple[bool, int]:
        """Take the patch out; (whether the file changed, compiled files removed).

        Raises:
            PreflightError: the file would not become what it was; nothing was changed then.
        """
        text = self._read()
        try:
            inspect_patch(text)
            before = take_out(text)
        except PatchError as error:
            raise PreflightError(f"{self.file} is left as it is: {error}\n  {_REINSTALL}") from None
        return self._write(text, before)

    def _check_as_installed(self, text: str) -> None:
        """Compare with what the installer noted; an installation without notes (a checkout) cannot be compared.

        Raises:
            PatchError: the file was edited since it was installed.
        """
        name = f"{self.package.name}/{PATCHED_FILE.as_posix()}"
        actual = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for record in self.package.parent.glob("sglang-*.dist-info/RECORD"):
            with record.open(newline="", encoding="utf-8") as lines:
                for row in csv.reader(lines):
                    if row[:1] == [name] and row[1:2] != [f"sha256={actual}"]:
                        raise PatchError("it was edited by hand: it is not what was installed")

    def _read(self) -> str:
        try:
            return self.file.read_bytes().decode()
        except UnicodeDecodeError:
            raise PreflightError(f"{self.file} is not UTF-8 text\n  {_REINSTALL}") from None
        except OSError as error:
            raise PreflightError(f"{self.file} cannot be read: {error.strerror}") from None

    def _write(self, before: str, after: str) -> tuple[bool, int]:
        changed = before != after
        if not changed and self.stale_bytecode() is None:
            return False, 0
        if changed and self.file.is_symlink():
            raise PreflightError(
                f"{self.file} is a symbolic link to {self.file.resolve()}, which other environments may share\n"
                "  name the folder of the real one with --sglang, or install SGLang with copies of its files"
            )
        try:
            if changed:
                status = self.file.stat()
                write_durable(self.file, after.encode(), mode=stat.S_IMODE(status.st_mode))
                self.file.chmod(stat.S_IMODE(status.st_mode))  # whatever the umask says
                if os.geteuid() == 0:
                    os.chown(self.file, status.st_uid, status.st_gid)
            return changed, remove_compiled(self.file)
        except OSError as error:
            raise PreflightError(
                f"{error.filename or self.file} cannot be written: {error.strerror}\n"
                "  run it as the user that owns the installation"
            ) from None


def find_installation(folder: Path | None = None) -> Installation:
    """The installation in `folder`, or the one that this interpreter imports.

    Args:
        folder: the package folder, or the one that holds it (site-packages, or `python` of a checkout).

    Raises:
        UsageError: `folder` is no SGLang.
        PreflightError: none is installed.
    """
    if folder is not None:
        for package in (folder, folder / "sglang", folder / "python" / "sglang"):
            if (package / PATCHED_FILE).is_file():
                return Installation(package.absolute())
        raise UsageError(f"--sglang {folder}: no {PATCHED_FILE} in it\n  give the folder of the package sglang")
    spec = importlib.util.find_spec("sglang")
    for place in spec.submodule_search_locations or () if spec else ():
        if (Path(place) / PATCHED_FILE).is_file():
            return Installation(Path(place).absolute())
    raise PreflightError(
        f"SGLang is not installed in {sys.prefix}\n"
        "  run hs-server from SGLang's own environment, or name the package's folder: --sglang DIR"
    )


def other_installations(chosen: Installation) -> list[Path]:
    """Package folders on this interpreter's path beside `chosen`; Python imports the first of all."""
    found = [Path(entry or ".").absolute() / "sglang" for entry in sys.path]
    real = [path for path in dict.fromkeys(found) if (path / PATCHED_FILE).is_file()]
    return [path for path in real if path.resolve() != chosen.package.resolve()]
