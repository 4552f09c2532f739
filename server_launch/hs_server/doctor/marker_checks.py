"""Do the markers of one port speak of one launch, and of all of its ranks? Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from hs_formats.control import Marker
from hs_server.doctor.observation import Finding, listed

__all__ = ["marker_findings"]

_SHARED = (
    "config_hash",
    "num_layers",
    "boundaries",
    "dtype",
    "hidden_size",
    "bytes_per_token",
    "writers",
    "expected_ranks",
    "chunk_size",
    "context_length",
    "sglang_version",
    "capture_mode",
)


def marker_findings(markers: Sequence[Marker], *, nonce: str, ranks: int) -> list[Finding]:
    """What is wrong with the live markers of a port.

    Args:
        markers: at least one, by rank.
        nonce: of the launch, where it is known; else empty.
        ranks: scheduler processes of the launch on this node; 0 where only the markers tell.
    """
    findings: list[Finding] = []
    wanted = nonce or markers[0].nonce
    strange = [marker for marker in markers if marker.nonce != wanted]
    if strange:
        who = listed(f"rank {marker.rank} (pid {marker.pid}) carries {marker.nonce}" for marker in strange)
        findings.append(
            Finding(
                f"marker of another launch: {who}, this launch is {wanted}",
                "two servers use one scratch and port, or a marker was changed: stop them, launch again",
            )
        )
    owed = ranks or markers[0].tp_size * (1 if markers[0].attn_tp_size < markers[0].tp_size else markers[0].dp_size)
    if len(markers) < owed and not strange:
        have = listed(marker.rank for marker in markers)
        findings.append(
            Finding(
                f"missing marker: only {len(markers)} of {owed} ranks have a live one (ranks {have})",
                "a scheduler process has ended, or never armed its capture: its log; launch again",
            )
        )
    for marker in markers[1:]:
        differ = [name for name in _SHARED if getattr(marker, name) != getattr(markers[0], name)]
        if differ:
            text = listed(f"{name} {getattr(markers[0], name)} and {getattr(marker, name)}" for name in differ)
            findings.append(
                Finding(f"markers disagree: ranks {markers[0].rank} and {marker.rank}: {text}", "launch again")
            )
    return findings
