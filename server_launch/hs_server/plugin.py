"""The SGLang plugin (entry point group ``sglang.srt.plugins``): dormant, or the whole capture.

From 0.5.11 on SGLang calls `install` in its main process and in every scheduler process; before, `sglang_main` does its
work. Without ``SGLANG_HS_DUMP_DIR`` it returns before anything else is imported.
"""

from __future__ import annotations

import os

from hs_server.env import DUMP_DIR

__all__ = ["install"]


def install() -> None:
    """Register the capture hooks when ``SGLANG_HS_DUMP_DIR`` is set.

    Raises:
        CaptureRefused: the environment names an impossible capture. SGLang logs and swallows it; the missing start-up
            marker is what stops the launch.
    """
    if not os.environ.get(DUMP_DIR):
        return
    from hs_server.capture.hooks import register

    register()
