"""What a run has done so far: counts, bytes, and what it waited for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["SHOWN_PROBLEMS", "Tally", "show_bytes", "show_seconds"]

SHOWN_PROBLEMS = 20


@dataclass(slots=True)
class Tally:
    """Counters of one run. `earlier` samples were done before it; `waited_s` is by what was waited for."""

    total: int = 0
    earlier: int = 0
    identical: int = 0
    done: int = 0
    adopted: int = 0
    failed: int = 0
    rejected: int = 0
    retried: int = 0
    sent: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    waited_s: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def waited(self, reason: str, seconds: float) -> None:
        """Add to the time that was waited, by what comes before the colon: the rest changes as time goes by."""
        self.waited_s[reason.partition(":")[0]] += seconds  # type: ignore[assignment]

    def problem(self, text: str) -> None:
        """Keep `text` for the closing list, which has a limit."""
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(text)

    @property
    def exit_code(self) -> int:
        """0 when every sample is done, else 1."""
        return 1 if self.failed or self.rejected else 0


def show_bytes(count: float) -> str:
    """Bytes for people: ``1.50 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def show_seconds(seconds: float) -> str:
    """Seconds for people: ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
