"""What a verification found: one finding for each thing that is wrong, or that should be looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["TWO_CONTENTS", "Finding", "Severity", "counts", "faulty_samples"]

TWO_CONTENTS = "two contents"
"""A kind of finding that no repair can settle: which row should have the id is for its owner to say."""

Severity = Literal["error", "suspect", "note"]
"""error: certainly wrong. suspect: unlike the rest of the set. note: for information, nothing is lost by it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: a few words for counting, a row in docs/dataset.md.
        where: the file, with its line where it has some, or the request.
        text: what is wrong, with the numbers that show it.
        sample_id: of the sample that must not be used because of it; "" where none is touched.
        severity: how sure it is.
    """

    kind: str
    where: str
    text: str
    sample_id: str = ""
    severity: Severity = "error"

    def __str__(self) -> str:
        sample = f" sample {self.sample_id!r}," if self.sample_id else ""
        mark = "" if self.severity == "error" else f" ({self.severity})"
        return f"{self.kind}{mark}:{sample} {self.where}: {self.text}"


def counts(findings: Iterable[Finding], severity: Severity) -> Counter[str]:
    """How many of each kind."""
    return Counter(finding.kind for finding in findings if finding.severity == severity)


def faulty_samples(findings: Iterable[Finding]) -> set[str]:
    """Samples that an error or a suspicion speaks against."""
    return {finding.sample_id for finding in findings if finding.sample_id and finding.severity != "note"}
