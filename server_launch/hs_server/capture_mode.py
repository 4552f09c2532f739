"""Which way into SGLang a launch takes, and what that way needs on the command line. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hs_formats.errors import PreflightError, UsageError
from hs_server.arguments import flag_value, names_flag
from hs_server.capture.families import FUSION_OFF, family_of_architectures, source_architectures
from hs_server.capture.mode import SOURCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hs_server.arguments import Topology
    from hs_server.versions import Release

__all__ = ["check_mode", "mode_arguments", "refuse_unknown_flags"]


def check_mode(mode: str, release: Release, *, architectures: Sequence[str]) -> None:
    """Whether a model can be captured that way.

    Args:
        mode: ``plugin`` or ``source``.
        release: the version of SGLang.
        architectures: of the model's config; empty where that is not known yet.

    Raises:
        PreflightError: this version or this model cannot.
    """
    if release.too_old:
        raise PreflightError(
            f"SGLang {release.text} is too old; the capture knows 0.5.9 and newer\n"
            "  upgrade SGLang, or launch with --no-capture"
        )
    if mode == SOURCE and not source_architectures().issuperset(architectures):
        raise PreflightError(
            f"{', '.join(architectures)}: source mode captures DeepSeek-V2/V3 and Kimi only\n"
            "  launch with --capture-mode plugin"
        )


def mode_arguments(
    mode: str, release: Release, *, architectures: Sequence[str], topology: Topology, given: Sequence[str]
) -> tuple[tuple[str, str | None], ...]:
    """What a launch in `mode` adds to the command line: flags, with their values.

    In source mode every prefill graph is off and decode graphs stay; in plugin mode all stay. In both, all-reduces are
    not fused where this version would then capture each rank's part of a sum.

    Raises:
        UsageError: `given`, the user's own arguments, turn prefill graphs on in source mode.
    """
    added: list[tuple[str, str | None]] = []
    if mode == SOURCE:
        for flag in release.prefill_graph_flags:
            if any(names_flag(argument, flag) for argument in given) and flag_value(given, flag) != "disabled":
                raise UsageError(
                    f"{flag} may turn prefill graphs on, and source mode needs them off\n"
                    "  drop it, or launch with --capture-mode plugin"
                )
        added += release.prefill_graphs_off
    family = family_of_architectures(architectures)
    if topology.tp > 1 and family is not None and release.assumed < family.reduced_since and release.takes(FUSION_OFF):
        added.append((FUSION_OFF, None))
    return tuple(added)


def refuse_unknown_flags(given: Sequence[str], release: Release) -> None:
    """Find the user's flags that this version is known not to take: SGLang would say less about them.

    Raises:
        UsageError: there is one; says which versions take it.
    """
    for argument in given:
        flag = release.missing(argument.partition("=")[0])
        if flag is not None:
            instead = flag.instead or "drop it"
            raise UsageError(
                f"SGLang {release.text} does not take {flag.name}, only versions {flag.versions()}\n  {instead}"
            )
