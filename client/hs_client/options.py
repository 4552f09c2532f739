"""Options that several commands have, and those that are alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = ["PROGRESS_INTERVAL", "SCRATCH", "seconds_option"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def seconds_option(name: str, default: float, text: str, *, least: float = 1) -> Decorator:
    """An option that takes at least `least` seconds; `text` is its help."""
    return click.option(name, type=click.FloatRange(least), default=default, show_default=True, metavar="S", help=text)


PROGRESS_INTERVAL = seconds_option(
    "--progress-interval", 10.0, "Seconds between lines where there is no terminal.", least=0.1
)

SCRATCH = click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="The tmpfs folder that the server writes to.  [default: $SGLANG_HS_DUMP_DIR, else /dev/shm/sglang_hs]",
)
