"""``hs-export.json``: what an export is, what was done to the states, and whether it is whole."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hs_client.export.errors import OtherExport
from hs_client.export.layout import Unit
from hs_client.export.settings import ExportSettings
from hs_formats.dataset import DatasetInfo
from hs_formats.durable import write_durable
from hs_formats.jsonl import UNREADABLE

__all__ = [
    "COMPLETE",
    "INCOMPLETE",
    "RECORD",
    "SAMPLES",
    "identity",
    "missing_files",
    "other_files",
    "read_record",
    "remove_temporaries",
    "write_record",
]

RECORD = "hs-export.json"
SAMPLES = "hs-samples.jsonl"
COMPLETE = "complete"
INCOMPLETE = "incomplete"

LOCK = ".hs-export.lock"
"""Held by the process that writes the export."""

_OF_SAFETENSORS = ".tmp" + 6 * "[A-Za-z0-9]"
"""safetensors 0.8 writes beside the file that it was told, under a name that it draws."""


def identity(settings: ExportSettings, info: DatasetInfo, *, model: str, serving: str) -> dict[str, Any]:
    """What must be the same for an export to be gone on with."""
    draft = ""
    if settings.draft_config is not None:
        draft = hashlib.sha256(settings.draft_config.read_bytes()).hexdigest()
    return {
        "dataset": str(settings.dataset.absolute() if isinstance(settings.dataset, Path) else settings.dataset),
        "config_hash": info.config_hash,
        "model": model,
        "format": settings.format,
        "algorithm": settings.algorithm,
        "dtype": settings.dtype,
        "fp8": settings.fp8,
        "draft_vocab_size": settings.draft_vocab_size,
        "draft_config": draft,
        "serving": serving,
        "unverified": settings.unverified,
        "shard_bytes": settings.shard_bytes,
    }


def read_record(out: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of an export that was begun in `out` with just these settings; None where `out` is new or empty.

    Raises:
        OtherExport: `out` holds something else.
    """
    try:
        data = msgspec.json.decode((out / RECORD).read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        if out.exists() and (not out.is_dir() or any(not _ours(file.name) for file in out.iterdir())):
            raise OtherExport(out=out, reason="it is not empty, and has no hs-export.json") from None
        return None
    except (OSError, *UNREADABLE) as error:
        raise OtherExport(out=out, reason=f"{RECORD} cannot be read: {error}") from None
    was = data.get("settings")
    if data.get("format") != "hs-export" or data.get("version") != 1 or not isinstance(was, dict):
        raise OtherExport(out=out, reason=f"{RECORD} is none of this version")
    other = [f"{key} {was.get(key)!r}, not {value!r}" for key, value in wanted.items() if was.get(key) != value]
    if other:
        raise OtherExport(out=out, reason="; ".join(other))
    return data


def remove_temporaries(out: Path) -> None:
    """Delete what writers that were killed have left half-written. For the holder of the lock alone.

    Raises:
        OSError: one cannot be deleted.
    """
    for pattern in (".*.tmp", _OF_SAFETENSORS):
        for file in out.rglob(pattern):
            file.unlink(missing_ok=True)


def other_files(out: Path, units: Collection[str]) -> list[str]:
    """The files of a finished export besides its units: configs, indexes, vocabulary maps."""
    found = (str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(name for name in found if name not in units and name not in (RECORD, SAMPLES))


def missing_files(out: Path, units: Iterable[Unit], record: Mapping[str, Any]) -> list[str]:
    """Files that a complete export has lost."""
    names = [*(unit.path for unit in units), *record.get("other_files", [])]
    return [name for name in names if not (out / name).is_file()]


def _ours(name: str) -> bool:
    # An export can be killed before its record is there; the list of samples comes first.
    temporary = name.startswith((f".{RECORD}.", f".{SAMPLES}.")) and name.endswith(".tmp")
    return temporary or name in (LOCK, SAMPLES)


def write_record(out: Path, content: Mapping[str, Any]) -> None:
    """Replace the record, durably.

    Raises:
        OSError: it cannot be written.
    """
    record = {"format": "hs-export", "version": 1, **content}
    write_durable(out / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
