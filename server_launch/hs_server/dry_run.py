"""`hs-server launch --dry-run`: what a launch would run, as lines that a shell takes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hs_server import env
from hs_server.arguments import without_secrets
from hs_server.plan import ENV_LAUNCH_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hs_server.plan import LaunchPlan

__all__ = ["dry_run_lines"]

_DRAWN = (env.NONCE, ENV_LAUNCH_ID)
"""Different in every launch, so not shown. A capture without nonce draws its own."""


def dry_run_lines(plan: LaunchPlan, environment: Mapping[str, str]) -> list[str]:
    """What `plan` adds to or takes from the surrounding `environment`, and its command line with keys hidden."""
    mode = f"capture mode {plan.capture_mode}" if plan.capture_mode else "no capture"
    lines = [f"# SGLang {plan.sglang.text}, profile {plan.profile.name}, {mode}"]
    if plan.sglang.unread:
        lines.append(f"# {plan.sglang.unread}")
    if plan.overridden:
        lines.append(f"# given after --, so not from the profile: {' '.join(plan.overridden)}")
    if plan.capture_mode:
        lines += [f"# {line}" for line in plan.boundary_lines()]
    lines += [f"unset {name}" for name in sorted(environment) if name not in plan.environment]
    lines += [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(plan.environment.items())
        if environment.get(name) != value and name not in _DRAWN
    ]
    lines.append(shlex.join(without_secrets(plan.argv)))
    return lines
