"""One verification from start to end: books, records in parallel, the set, the model; and what came of it."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from hs_client.verify.books import Books, read_books
from hs_client.verify.compare import SetComparison
from hs_client.verify.findings import Finding, faulty_samples
from hs_client.verify.progress import VerifyProgress
from hs_client.verify.records import RecordCheck, check_other_file, check_record
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.index import IndexedSample
from hs_formats.verified import VerifiedSet

__all__ = ["CHECKS", "Verification", "slot_names", "verify"]

T = TypeVar("T")
R = TypeVar("R")

CHECKS = ("books", "checksums", "values", "set")
"""What every verification looks at; ``model`` is added where samples were recomputed."""


@dataclass(slots=True)
class Verification:
    """The outcome.

    Attributes:
        verified: samples that nothing speaks against.
        recomputed: relative difference from the model by sample id.
        rms: typical size of a state, by slot.
    """

    info: DatasetInfo
    books: Books
    findings: list[Finding]
    verified: list[IndexedSample]
    rms: list[float]
    recomputed: dict[str, float] = field(default_factory=dict)
    raw_bytes: int = 0
    seconds: float = 0.0

    @property
    def bad(self) -> list[Finding]:
        """All but notes."""
        return [finding for finding in self.findings if finding.severity != "note"]

    def mark(self, paths: DatasetPaths) -> None:
        """Write down which samples are verified, in place of what was known before.

        Raises:
            OSError: the dataset cannot be written.
        """
        checks = (*CHECKS, *(["model"] if self.recomputed else []))
        at = datetime.now(UTC).isoformat(timespec="seconds")
        VerifiedSet.of(self.verified, verified_at=at, checks=checks).write(paths)


def slot_names(info: DatasetInfo) -> list[str]:
    """How the slots are called in texts."""
    return [*(f"slot {slot} (boundary {b})" for slot, b in enumerate(info.boundaries)), "last state"]


def verify(
    paths: DatasetPaths,
    info: DatasetInfo,
    *,
    jobs: int = 2,
    sample: int = 0,
    model: str = "",
    trust_remote_code: bool = False,
    seed: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Verify a dataset. Nothing is written.

    Args:
        jobs: records read at once.
        sample: computed again with `model`, drawn at random; samples under suspicion come on top and first.
        model: folder or name for transformers; "" recomputes nothing.
        seed: of the draw.
        say: told of each step.

    Raises:
        PreflightError: the model cannot be loaded or is another one.
        OSError: the dataset cannot be read.
    """
    started_s = time.monotonic()
    books = read_books(paths)
    samples = list(books.index.samples.values())
    needed = {part.path for each in samples for part in each.parts}
    others = [file for file in books.files.values() if file.path not in needed and not file.problem]
    findings = list(books.findings)
    progress = VerifyProgress(len(samples) + len(others))
    raw_bytes = 0
    try:
        with SetComparison(dtype=info.dtype, slots=slot_names(info)) as comparison:
            for check in _parallel(lambda each: check_record(paths, info, each), samples, jobs):
                _take(check, findings, comparison)
                raw_bytes += check.raw_bytes
                progress.step(check.raw_bytes, len(findings))
            for found in _parallel(
                lambda file: check_other_file(paths, file, books.lines.get(str(file.name))), others, jobs
            ):
                findings += found
                progress.step(0, len(findings))
            findings += comparison.findings(faulty_samples(findings))
            rms = comparison.rms()
    finally:
        progress.close()
    # A file that is missing shows twice, in the books and on reading.
    findings = list(dict.fromkeys(findings))
    result = Verification(info, books, findings, [], rms, raw_bytes=raw_bytes)
    if model:
        _recompute(result, sample, model, trust_remote_code, seed, say)
    faulty = faulty_samples(result.findings)
    result.verified = [each for each in samples if each.sample_id not in faulty]
    result.seconds = time.monotonic() - started_s
    return result


def _take(check: RecordCheck, findings: list[Finding], comparison: SetComparison) -> None:
    findings += check.findings
    if check.facts is not None:
        comparison.add(check.sample, check.facts)


def _parallel(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """Results in order; no more than a few ahead, so that memory stays flat."""
    with ThreadPoolExecutor(jobs, thread_name_prefix="hs-verify") as pool:
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > 2 * jobs:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _recompute(
    result: Verification, count: int, path: str, trust_remote_code: bool, seed: int | None, say: Callable[[str], None]
) -> None:
    from hs_client.verify.recompute import ModelStates, as_finding, recompute
    from hs_formats.reader import HiddenStateDataset

    samples = result.books.index.samples
    errors = {finding.sample_id for finding in result.findings if finding.severity == "error"}
    suspects = [finding.sample_id for finding in result.findings if finding.severity == "suspect"]
    first = [name for name in dict.fromkeys(suspects) if name in samples and name not in errors]
    known = {*errors, *first}
    rest = [name for name in samples if name not in known]
    drawn = random.Random(seed).sample(rest, min(count, len(rest)))  # noqa: S311  # no secret
    say(f"computing {len(drawn)} samples and {len(first)} under suspicion again with {path}")
    model = ModelStates(path, result.info, trust_remote_code=trust_remote_code)
    dataset = HiddenStateDataset(result.books.paths.location)
    wrong: set[str] = set()
    for done in recompute(model, dataset, [samples[name] for name in [*first, *drawn]]):
        result.recomputed[done.sample.sample_id] = done.difference
        if done.problem:
            result.findings.append(as_finding(done))
            wrong.add(done.sample.sample_id)
    right = set(first) - wrong
    result.findings = [_cleared(finding, right) for finding in result.findings]


def _cleared(finding: Finding, right: set[str]) -> Finding:
    if finding.severity != "suspect" or finding.sample_id not in right:
        return finding
    return Finding(
        finding.kind, finding.where, f"{finding.text}; but the model says the same", finding.sample_id, "note"
    )
