"""`hs-client verify` as the command line has it: runs, prints, writes the report and the marks."""

from __future__ import annotations

import functools
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from hs_client.dataset_argument import local_only
from hs_client.info_command import open_dataset
from hs_client.saying import say
from hs_client.tally import show_bytes, show_seconds
from hs_client.verify.findings import TWO_CONTENTS, Severity, counts
from hs_client.verify.repair import Repair, repair
from hs_client.verify.run import CHECKS, Verification, slot_names, verify
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.durable import write_durable
from hs_formats.errors import FormatError, PreflightError, StorageError, UsageError
from hs_formats.location import Location

__all__ = ["VerifySettings", "verify_command"]

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What the command line says.

    Attributes:
        json: where the report goes, ``-`` for standard output.
        sample: how many samples to recompute, None for the default of 16 where there is a model.
        prompts: files to rebuild lost intents from.
        scratch: is asked whether anybody is at work on the dataset.
    """

    dataset: Location
    scratch: Path
    jobs: int = 2
    json: str = ""
    sample: int | None = None
    model: str = ""
    trust_remote_code: bool = False
    seed: int | None = None
    repair: bool = False
    prompts: tuple[Path, ...] = ()


def verify_command(settings: VerifySettings, *, stream: TextIO | None = None) -> int:
    """Verify, and repair where asked to; returns the exit code, 0 when nothing is wrong and 1 otherwise.

    Raises:
        UsageError: options contradict each other.
        PreflightError: no dataset, no model, or somebody is at work on what is to be repaired.
        StorageError: the dataset cannot be read or written.
    """
    out = stream if stream is not None else (sys.stderr if settings.json == "-" else sys.stdout)
    if settings.sample is not None and not settings.model:
        raise UsageError("--sample computes samples again, which needs --model PATH")
    if settings.prompts and not settings.repair:
        raise UsageError("--prompts is for --repair")
    if settings.repair:
        local_only(settings.dataset, "--repair")
    paths = open_dataset(settings.dataset)
    info = paths.read_info()
    if info is None:
        raise PreflightError(f"{settings.dataset} has lost its dataset.json just now")
    try:
        done = _verify(paths, info, settings)
        repaired: Repair | None = None
        if settings.repair:
            repaired = repair(done, scratch=settings.scratch, prompts=settings.prompts)
            for line in repaired.lines():
                say(line, stream=out)
            if repaired.changed:
                done = _verify(paths, info, settings)
    except OSError as error:
        raise StorageError(
            f"cannot read or write {settings.dataset} ({error}): see to the disk or the store, then repeat"
        ) from None
    except FormatError as error:
        raise PreflightError(f"{settings.dataset}: {error}") from None
    code = 1 if done.bad or (repaired is not None and repaired.lost) else 0
    for line in _lines(done):
        say(line, stream=out)
    for line in _what_next(done, settings):
        say(line, stream=out)
    if settings.json:
        _write_report(settings, done, repaired, code)
    try:
        done.mark(paths)
    except OSError as error:
        raise StorageError(
            f"cannot write {paths.shown}/{paths.verified.name} ({error.strerror}): nothing is marked as verified"
        ) from None
    return code


def _verify(paths: DatasetPaths, info: DatasetInfo, settings: VerifySettings) -> Verification:
    return verify(
        paths,
        info,
        jobs=settings.jobs,
        sample=16 if settings.sample is None else settings.sample,
        model=settings.model,
        trust_remote_code=settings.trust_remote_code,
        seed=settings.seed,
        say=functools.partial(say, err=True),
    )


def _lines(done: Verification) -> list[str]:
    total = len(done.books.index.sample_ids)
    tokens = sum(sample.n for sample in done.books.index.samples.values())
    lines = [
        f"samples    {total} done, {len(done.verified)} verified",
        f"tokens     {tokens:,}",
        f"bytes      {show_bytes(done.raw_bytes)} decoded in {show_seconds(done.seconds)}",
    ]
    names = slot_names(done.info)
    lines += [f"RMS        {rms:9.4g}  {name}" for rms, name in zip(done.rms, names, strict=False)]
    if done.recomputed:
        worst = max(done.recomputed.values())
        lines.append(f"model      {len(done.recomputed)} samples computed again, at most {worst:.2g} of a state off")
    words: tuple[tuple[Severity, str], ...] = (("error", "wrong"), ("suspect", "suspicious"), ("note", "noted"))
    for severity, word in words:
        found = [finding for finding in done.findings if finding.severity == severity]
        if not found:
            continue
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts(done.findings, severity).most_common())
        lines.append(f"{word:10} {kinds}")
        lines += [f"  {finding}" for finding in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"  … and {len(found) - _SHOWN} more; --json FILE has all")
    if not done.bad:
        lines.append("nothing is wrong")
    return lines


def _what_next(done: Verification, settings: VerifySettings) -> list[str]:
    severities = {finding.severity for finding in done.findings if finding.kind != TWO_CONTENTS}
    command = shlex.join(["hs-client", "verify", str(settings.dataset)])
    if "error" in severities and not settings.repair:
        return [f"to mend    {command} --repair, with its mover and clients stopped, then the run again"]
    if "suspect" in severities and not settings.model:
        return [f"to decide  {command} --model PATH computes suspicious samples again"]
    return []


def _write_report(settings: VerifySettings, done: Verification, repaired: Repair | None, code: int) -> None:
    index = done.books.index
    report: dict[str, Any] = {
        "dataset": str(settings.dataset),
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": code,
        "checks": [*CHECKS, *(["model"] if done.recomputed else [])],
        "samples": len(index.sample_ids),
        "verified": len(done.verified),
        "tokens": sum(sample.n for sample in index.samples.values()),
        "raw_bytes": done.raw_bytes,
        "seconds": round(done.seconds, 3),
        "rms": dict(zip(slot_names(done.info), done.rms, strict=False)),
        "recomputed": {name: value if value < float("inf") else None for name, value in done.recomputed.items()},
        "counts": {severity: dict(counts(done.findings, severity)) for severity in ("error", "suspect", "note")},
        "findings": [asdict(finding) for finding in done.findings],
        "repaired": None if repaired is None else repaired.report(),
    }
    text = msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
    if settings.json == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    try:
        write_durable(Path(settings.json), text)
    except OSError as error:
        raise StorageError(f"cannot write the report {settings.json} ({error.strerror})") from None
