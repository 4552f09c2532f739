"""How a run on many nodes ends: its closing lines, its summary for programs, its exit code or error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hs_client.cluster.ending import ClientEnd, client_facts, client_line, total_tally
from hs_client.cluster.errors import NodesFailed, NodesRefuse, NodesWithoutStorage
from hs_client.cluster.settings import ClusterSettings
from hs_client.leases.holder import Holder
from hs_client.session import INTERRUPTED
from hs_client.summary import summary, summary_lines
from hs_formats.errors import HsError

__all__ = ["close_run", "nobody_left"]

_REFUSED = {2, 3}
_STORAGE = {5}


def nobody_left(reasons: Sequence[tuple[str, int, str]], *, left: int | str) -> HsError:
    """The error for `reasons`, the name, exit code and reason of each node that has failed; `left`: pending samples."""
    codes = {code for _, code, _ in reasons}
    error: type[HsError] = NodesFailed
    if codes and codes <= _REFUSED:
        error = NodesRefuse
    elif codes == _STORAGE:
        error = NodesWithoutStorage
    names: dict[str, list[str]] = {}
    for name, _, reason in reasons:
        names.setdefault(reason, []).append(name)
    shown = "; ".join(f"{', '.join(each)}: {reason}" for reason, each in names.items()) or "none answers"
    return error(reasons=shown, left=left)


def close_run(
    settings: ClusterSettings,
    holder: Holder,
    ends: Sequence[ClientEnd],
    *,
    spent_s: float,
    error: HsError | None,
    interrupted: bool,
    say: Callable[[str], None],
) -> int:
    """Say what the run has come to, with a line for each of its clients; returns the exit code.

    Raises:
        HsError: `error`, if the user has not interrupted the run before.
    """
    finished, first = holder.finished, holder.first
    tally = total_tally(holder.totals, first, ends, finished=finished)
    if finished:
        code = tally.exit_code
    elif error is None or interrupted:
        code = INTERRUPTED
    else:
        code = error.exit_code
    for line in summary_lines(tally, spent_s=spent_s, pending=tally.left, ledger=True):
        say(line)
    lines = Counter(map(client_line, sorted(ends, key=lambda each: each.node)))
    for line, times in lines.items():
        say(line if times == 1 else f"{line} ({times} times)")
    if not finished:
        say(f"to go on   {settings.repeat}")
    facts = summary(
        tally,
        spent_s=spent_s,
        pending=tally.left,
        exit_code=code,
        runs=[end.hello.run for end in ends if end.hello is not None],
        dataset=first.dataset if first is not None else "",
        servers=sorted({url for end in ends for url in end.summary.get("servers", ())}),
        failed_rows=[end.summary["failed_rows"] for end in ends if end.summary.get("failed_rows")],
        error="" if error is None else str(error),
        nodes=[client_facts(end) for end in ends],
    )
    if settings.summary_json is not None:
        _write(settings.summary_json, facts, say)
    if code == INTERRUPTED:
        say("interrupted: repeat the command to go on")
    elif error is not None and not finished:
        raise error
    return code


def _write(path: Path, facts: dict[str, Any], say: Callable[[str], None]) -> None:
    for of_one_client in ("latency_p50_s", "latency_p95_s"):
        del facts[of_one_client], facts["generation"][of_one_client]
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
    except OSError as caught:
        say(f"warning: cannot write the summary to {path}: {caught.strerror or caught}")
