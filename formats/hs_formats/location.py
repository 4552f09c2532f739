"""Where datasets lie: a folder, or a prefix in an object store, as ``s3://bucket/prefix``. Standard library only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hs_formats.errors import UsageError

__all__ = ["SCHEMES", "Location", "ObjectUrl", "parse_location"]

SCHEMES = ("s3", "gs", "az")

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_SLIP = re.compile(rf"({'|'.join(SCHEMES)}):/?([^/].*)?", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """A prefix in a bucket; `key` has no slash at its ends and may be empty."""

    scheme: str
    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> ObjectUrl:
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        """Last component of the key; the bucket where there is none."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parent(self) -> ObjectUrl:
        """One component up; the bucket itself at the end."""
        return ObjectUrl(self.scheme, self.bucket, self.key.rpartition("/")[0])


Location = Path | ObjectUrl
"""Of a dataset or a destination."""


def parse_location(text: str | os.PathLike[str] | ObjectUrl) -> Location:
    """The location that `text` names: a URL of an object store, else a path.

    Raises:
        UsageError: it begins like a URL and is none of an object store that is known, or lacks a slash of one.
    """
    if isinstance(text, ObjectUrl):
        return text
    plain = os.fspath(text)
    match = _URL.fullmatch(plain)
    if match is None:
        slip = _SLIP.fullmatch(plain)
        if slip is not None:  # as a path it would quietly fill the local disk
            raise UsageError(
                f"{plain!r} is not like {slip[1]}://bucket/prefix; for a folder of that name give {'./' + plain!r}"
            )
        return Path(plain)
    scheme, rest = match.groups()
    bucket, _, key = rest.partition("/")
    parts = [part for part in key.split("/") if part]
    if scheme not in SCHEMES:
        raise UsageError(f"{plain}: {scheme}:// is no object store that is known; use {', '.join(SCHEMES)} or a path")
    if _BUCKET.fullmatch(bucket) is None or any(part in (".", "..") for part in parts) or not key.isprintable():
        raise UsageError(f"{plain!r} is not like {scheme}://bucket/prefix")
    return ObjectUrl(scheme, bucket, "/".join(parts))
