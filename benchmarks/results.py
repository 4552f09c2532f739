"""Result files: one JSON a run, complete or marked as not, and the newest valid one rendered into the case's README."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.checkout import ROOT
from hs_formats.durable import replace_file

__all__ = ["RESULTS", "ResultFile", "alike", "latest", "load", "write_between_marks", "write_latest"]

RESULTS = ROOT / "benchmarks" / "results"

_VERSION = 1
_NUMBERED = re.compile(r"\.([0-9]+)\.json$", re.ASCII)
_BEGIN, _END = "<!-- latest result -->", "<!-- end of the latest result -->"


class ResultFile:
    """The result of one run; `save` may be called as often as something is known.

    Args:
        case: name of the case.
        folder: results go to ``<folder>/<case>/``.
        label: tells apart what is measured with the same case on one machine, such as the model.
        quick: the short form: shapes, no figures.

    Attributes:
        head: what each result says of itself: case, machine, versions, commit.
    """

    def __init__(self, case: str, folder: Path, *, label: str = "", quick: bool = False) -> None:
        started = dt.datetime.now(tz=dt.UTC)
        where = machine.describe()
        name = "-".join(
            filter(None, [started.strftime("%Y-%m-%d"), str(where["name"]), label, "quick" if quick else ""])
        )
        self.path = _unused(folder / case / f"{name}.json")
        self._started_s = time.monotonic()
        self.head: dict[str, Any] = {
            "case": case,
            "format": "hs-benchmark",
            "version": _VERSION,
            "started_at": started.isoformat(timespec="seconds"),
            "quick": quick,
            "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
            "commit": machine.commit(),
            "machine": where,
            "versions": machine.versions(),
            # A CPU's cores are shared with the load generator: counts mean something there, times do not.
            "times_mean_something": bool(where["gpus"]) and not quick,
        }

    def save(self, body: Mapping[str, Any], *, complete: bool, problems: list[str]) -> Path:
        """Replace the file. A run with problems is invalid: its figures are kept for diagnosis and never shown."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            **self.head,
            "seconds": round(time.monotonic() - self._started_s, 1),
            "complete": complete,
            "valid": complete and not problems,
            "problems": problems,
            **body,
        }
        text = json.dumps(record, indent=1, default=_plain, ensure_ascii=False)
        replace_file(self.path, _compact_lists(text).encode() + b"\n", mode=0o644)
        return self.path


def load(path: Path) -> dict[str, Any]:
    """A result file."""
    record: dict[str, Any] = json.loads(path.read_bytes())
    return record


def latest(case: str, folder: Path = RESULTS) -> list[tuple[Path, dict[str, Any]]]:
    """The newest valid full result of `case` for each machine and label."""
    found: dict[tuple[str, str], tuple[Path, dict[str, Any]]] = {}
    for path, record in _by_age(case, folder):
        if record["valid"] and not record["quick"]:
            found[str(record["machine"]["name"]), str(record.get("label", ""))] = (path, record)
    return [found[key] for key in sorted(found)]


def alike(record: Mapping[str, Any], case: str, folder: Path) -> list[dict[str, Any]]:
    """The valid results of `case`, oldest first, that may be put together with `record`; once saved it is one of them.

    They are of the same machine, code, SGLang, label and parameters, and as long or short.
    """
    return [other for _, other in _by_age(case, folder) if other["valid"] and _kind(other) == _kind(record)]


def _kind(record: Mapping[str, Any]) -> tuple[Any, ...]:
    head = record["machine"]["name"], record["commit"], record["versions"].get("sglang"), record["quick"]
    return *head, record.get("label", ""), json.dumps(record["parameters"], sort_keys=True, default=_plain)


def _by_age(case: str, folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    records = [(path, load(path)) for path in (folder / case).glob("*.json")]
    return sorted(records, key=lambda item: (item[1]["started_at"], _number(item[0])))


def write_latest(case: str, text: str) -> None:
    """Put `text` where the README of `case` shows its latest result."""
    write_between_marks(ROOT / "benchmarks" / case / "README.md", text)


def write_between_marks(readme: Path, text: str) -> None:
    """Put `text` where `readme` shows the latest result."""
    before = readme.read_text(encoding="utf-8")
    body = f"{_BEGIN}\n\n{text.strip()}\n\n{_END}"
    after = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: body, before, flags=re.DOTALL)
    if after != before:
        readme.write_text(after, encoding="utf-8")


def _unused(path: Path) -> Path:
    number = 2
    free = path
    while free.exists():
        free = path.with_name(f"{path.stem}.{number}.json")
        number += 1
    return free


def _number(path: Path) -> int:
    match = _NUMBERED.search(path.name)
    return int(match[1]) if match else 1


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} does not go into a result")


def _compact_lists(text: str) -> str:
    """Lists of numbers on one line: samples would otherwise take a line each."""
    numbers = re.compile(r"\[((?:\s*-?[0-9][0-9.e+-]*,?)+)\s*\]")
    return numbers.sub(lambda match: "[" + ", ".join(match[1].replace(",", " ").split()) + "]", text)
