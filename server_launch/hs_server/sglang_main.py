"""The main module of a launch of SGLang before 0.5.11, instead of `sglang.launch_server`: it brings the plugins itself.

SGLang starts its scheduler processes by multiprocessing's spawn, which imports the main module again in each of them
before anything of SGLang runs there. So what stands at the top of this file runs in every process, as SGLang's plugin
loader would.
"""

from __future__ import annotations

import os
import runpy

from hs_server.cpu_profile import plugin as cpu_profile
from hs_server.env import DUMP_DIR

__all__: list[str] = []

if os.environ.get(DUMP_DIR):
    from hs_server.capture.hooks import register_late

    register_late()
cpu_profile.install()

if __name__ == "__main__":
    # Not in place of this module: the scheduler processes are to import this one.
    runpy.run_module("sglang.launch_server", run_name="__main__")
