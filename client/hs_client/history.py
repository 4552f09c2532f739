"""What earlier runs of a dataset left: samples that are done or rejected, and intents whose outcome nobody noted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hs_client.rows import digest
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Done, Failed, Intent, Rejected, iter_ledger
from hs_formats.names import run_of_rid

__all__ = ["History", "read_history"]


@dataclass(slots=True)
class History:
    """State of every sample that some ledger of the dataset names, by `hs_client.rows.digest` of its id.

    Attributes:
        done: samples that must never be sent again.
        rejected: samples that can never be done, with the reason.
        content: `content` of the row that was done, else of the one rejected, where a ledger has it; as a number, which
            takes less memory.
        short: of samples rejected because of the server's context length, that length.
        open: intents without an outcome of samples that are not done, in the order in which they were written.
        runs: ids of all runs that have a ledger.
    """

    done: set[bytes] = field(default_factory=set)
    rejected: dict[bytes, str] = field(default_factory=dict)
    content: dict[bytes, int] = field(default_factory=dict)
    short: dict[bytes, int] = field(default_factory=dict)
    open: dict[bytes, list[Intent]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)

    @property
    def open_runs(self) -> set[str]:
        """Runs that have open intents."""
        return {run_of_rid(intent.rid) for intents in self.open.values() for intent in intents}

    def changed(self, key: bytes, content: str) -> bool:
        """The row that was done or rejected under this id was another one."""
        known = self.content.get(key)
        return bool(content) and known is not None and known != int(content, 16)

    def drop_changed(self, key: bytes, content: str) -> None:
        """Forget open intents for other rows than the one of `content`: their records must not be adopted for it."""
        kept = [intent for intent in self.open.get(key, ()) if intent.content in ("", content)]
        if kept:
            self.open[key] = kept
        else:
            self.open.pop(key, None)


def read_history(paths: DatasetPaths, *, live_runs: Collection[str] = ()) -> History:
    """Read every ledger of the dataset, flat in memory but for one digest a sample.

    Intents of `live_runs`, other clients at work on this dataset just now, are theirs to finish and are left out.

    Raises:
        OSError: a ledger cannot be read.
    """
    history = History()
    turned_down: dict[bytes, int] = {}
    for path in sorted(paths.ledger.glob("*.jsonl")):
        run = path.stem
        history.runs.add(run)
        pending: dict[str, Intent] = {}
        for line in iter_ledger(path):
            match line:
                case Intent():
                    pending[line.rid] = line
                case Done():
                    pending.pop(line.rid, None)
                    key = digest(line.sample_id)
                    history.done.add(key)
                    if line.content:
                        history.content[key] = int(line.content, 16)
                case Failed():
                    pending.pop(line.rid, None)
                case Rejected(sample_id=sample_id) if sample_id:
                    key = digest(sample_id)
                    history.rejected[key] = line.reason
                    turned_down.pop(key, None)
                    if line.content:
                        turned_down[key] = int(line.content, 16)
                    history.short[key] = line.context_tokens
                case _:
                    pass
        if run not in live_runs:
            for intent in pending.values():
                history.open.setdefault(digest(intent.sample_id), []).append(intent)
    for key in history.done:
        history.open.pop(key, None)
        history.rejected.pop(key, None)
    for key in history.rejected:
        if key in turned_down:
            history.content[key] = turned_down[key]
    return history
