"""Everything that is looked at right before SGLang is started: who reaches it, GPUs, room, what earlier runs left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hs_formats.errors import PreflightError
from hs_server.exposure import exposure_lines
from hs_server.gpus import check_gpus
from hs_server.leftovers import leftover_lines
from hs_server.room_checks import check_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from hs_server.plan import LaunchPlan

__all__ = ["check_before_start"]


def check_before_start(
    plan: LaunchPlan,
    *,
    share_gpus: bool,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[str], object] = len,
) -> list[str]:
    """Check the machine for `plan`, whose scratch exists; returns lines for the terminal.

    `pause` sleeps and `say` takes a line for the user, where something must be waited for.

    Raises:
        PreflightError: something is taken or too small.
    """
    capture = plan.request.capture
    lines = exposure_lines(plan.request)
    lines += check_gpus(plan, plan.environment, share=share_gpus, pause=pause, say=say)
    try:
        lines += check_room(plan, plan.environment)
        if capture is not None:
            lines += leftover_lines(capture.dump_dir)
    except OSError as error:
        raise PreflightError(f"the machine cannot be looked at: {error}\n  see to the path it names") from None
    return lines
