"""A view of the installed SGLang with the patch of source mode in it; the installation is left as it is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.checkout import use_test_support
from hs_formats.errors import HsError

__all__ = ["patched_environment"]


def patched_environment(work: Path) -> dict[str, str]:
    """Make the view below `work`, and name it in PYTHONPATH.

    Raises:
        HsError: it cannot be patched.
    """
    use_test_support()
    from sglang_overlay import overlay_sglang

    site = work / "patched"
    shutil.rmtree(site, ignore_errors=True)
    found = importlib.util.find_spec("sglang")
    if found is None or found.origin is None:
        raise HsError("SGLang cannot be patched: it is not installed")
    package = overlay_sglang(Path(found.origin).parents[1], site)
    argv = [sys.executable, "-m", "hs_server.cli", "patch", "--sglang", str(package)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HsError(f"SGLang cannot be patched: {done.stderr.strip()[-500:]}")
    return {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH", "")])])}
