"""When a server counts as ready: it answers, and every scheduler rank has left this launch's start-up marker.

SGLang logs and swallows whatever goes wrong in a plugin, so that the absence of an error says nothing; only a marker,
locked by a living process and carrying the nonce of this launch, proves that the capture is armed.
"""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hs_formats.control import ControlFolder, Marker
from hs_formats.printable import printable
from hs_server.capture.errors import REFUSAL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hs_server.patch.installation import Installation

__all__ = [
    "ArmedState",
    "armed_state",
    "capture_lines",
    "http_status",
    "log_tail",
    "refusal",
    "why_not_armed",
    "wrong_way",
]

_FAILED_PLUGIN = re.compile(r"Failed to \w+ .*\b(?:hs_capture|hs_cpu_profile|hs_server)\b", re.ASCII)
# The last line of a traceback: not indented, `module.Error: text`.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Refused|Warning|Exit|Interrupt)\b", re.ASCII)

_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedState:
    """The living markers of one launch, and how many there must be."""

    markers: tuple[Marker, ...]
    expected: int

    @property
    def complete(self) -> bool:
        """Every rank of this node has proved that its capture is armed."""
        return len(self.markers) >= self.expected


def armed_state(dump_dir: Path, *, nonce: str, expected: int) -> ArmedState:
    """Read the markers in `dump_dir` that carry `nonce`; a marker's own sizes win over the `expected` number."""
    found = [marker for marker in ControlFolder(dump_dir).live_markers() if marker.nonce == nonce]
    found.sort(key=lambda marker: (marker.dp_rank, marker.rank, marker.pid))
    if found:
        first = found[0]
        dp_attention = first.attn_tp_size < first.tp_size
        # Replicas under DP attention share the TP ranks; others have ranks of their own. On several nodes only this
        # node's ranks leave markers here, hence never more than the command line implies.
        ranks = first.tp_size * (1 if dp_attention else first.dp_size)
        expected = min(ranks, expected) if ranks > expected else ranks
    return ArmedState(markers=tuple(found), expected=max(1, expected))


def capture_lines(state: ArmedState) -> list[str]:
    """What the markers say, for the terminal."""
    first = state.markers[0]
    copies = f" ({first.copies} copies)" if first.copies > 1 else ""
    ranks = f"{len(state.markers)} of {state.expected} ranks"
    way = f", from {first.source_file}" if first.source_file else ""
    return [
        f"capture   armed on {ranks}{way}: {first.boundaries} and last state, {first.dtype}, writers {first.writers}",
        f"          {first.bytes_per_token * first.copies:,} bytes per token{copies}",
    ]


def wrong_way(state: ArmedState, *, mode: str, source: Installation | None) -> str | None:
    """Why the ranks' capture came in another way than the launch meant, with the remedy; None where it did not.

    Args:
        state: the markers.
        mode: ``plugin`` or ``source``.
        source: in source mode, the patched installation.
    """
    for marker in state.markers:
        if marker.capture_mode != mode:
            return (
                f"rank {marker.rank} captures in {marker.capture_mode} mode, not in {mode} mode\n"
                "  hs-extract is there twice: see `pip list` in the server's environment"
            )
        if source is None:
            continue
        if Path(marker.source_file).resolve() != source.file.resolve():
            return (
                f"rank {marker.rank} runs {marker.source_file}, not {source.file}\n"
                "  there are two installations of SGLang: take one off PYTHONPATH, or patch the other"
            )
        if marker.source_sha256 != source.sha256():
            return f"{source.file} was changed while the server started\n  launch again"
    return None


def http_status(host: str, port: int, path: str, *, timeout_s: float) -> int | None:
    """The status code of GET `path`, or None where nobody answers in time."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def log_tail(log: Path, *, lines: int) -> list[str]:
    """The last non-empty lines of `log`, fit for a terminal: requests of others show up in it."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            if size > _TAIL_BYTES:
                file.readline()  # the middle of a line may be that of an argument
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [printable(line) for line in text.splitlines() if line.strip()][-lines:]


def refusal(log: Path) -> str | None:
    """The capture's own refusal in the server's `log`: reason and remedy, or None where it did not refuse."""
    for line in _lines(log):
        _, found, reason = line.partition(REFUSAL_PREFIX)
        if found:
            return reason.strip().replace("; ", "\n  ", 1)
    return None


def why_not_armed(state: ArmedState, log: Path, *, source: Installation | None = None) -> str:
    """The likely cause of missing markers, from what the log says about our plugins; `source` as for `wrong_way`."""
    if (reason := refusal(log)) is not None:
        return f"the capture refused to start: {reason}\n  log: {log}"
    if state.markers:
        have = ", ".join(str(marker.rank) for marker in state.markers)
        head = f"only {len(state.markers)} of {state.expected} ranks armed their capture (ranks {have})"
    else:
        head = "SGLang answers, but no rank armed its capture"
    said = _plugin_errors(_lines(log))
    if source is not None:
        return (
            f"{head}, although {source.file} is patched\n"
            "  the server runs another file or old bytecode: see `hs-server patch --check`\n"
            f"  log: {log}"
        )
    if not said:
        return f"{head}, and its log does not say why\n  log: {log}\n  to serve without capturing: --no-capture"
    return "\n".join([f"{head}; its log says:", *(f"  {line}" for line in said), f"  log: {log}"])


def _plugin_errors(lines: Sequence[str]) -> list[str]:
    """What SGLang logged about a plugin of ours that failed: its message, and the exception that ends the traceback."""
    found: list[str] = []
    in_traceback = False
    for line in lines:
        if _FAILED_PLUGIN.search(line):
            found.append(line.strip())
            in_traceback = True
        elif in_traceback and _EXCEPTION.match(line):
            found.append(line.strip())
            in_traceback = False
    # Every process of the server says the same.
    return list(dict.fromkeys(found))[-8:]


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
