from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

STANDARD_LIBRARY_ONLY = [
    "boundaries",
    "codec_names",
    "container",
    "control",
    "control_state",
    "doctor_pass",
    "durable",
    "errors",
    "failure_ring",
    "fixed_record",
    "mask",
    "memory",
    "names",
    "notify",
    "part",
    "printable",
    "regular",
    "state",
    "stored_zip",
    "tiling",
]

_PROGRAM = """
import json, sys
before = set(sys.modules)
__import__(sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def _imported(module: str) -> set[str]:
    run = subprocess.run([sys.executable, "-c", _PROGRAM, module], check=True, capture_output=True, text=True)
    return set(json.loads(run.stdout))


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_modules_for_the_server_import_the_standard_library_only(module: str) -> None:
    """SGLang's processes import these; they must cost nothing there and need nothing installed."""
    foreign = _imported(f"hs_formats.{module}") - sys.stdlib_module_names
    assert foreign == {"hs_formats"}


def test_the_package_itself_imports_nothing() -> None:
    assert _imported("hs_formats") - {"__future__"} == {"hs_formats"}


def test_index_and_stored_parts_do_without_torch() -> None:
    assert "torch" not in _imported("hs_formats.index") | _imported("hs_formats.stored")


def test_what_the_server_uses_of_the_formats_is_among_these() -> None:
    sources = (Path(__file__).resolve().parents[2] / "server_launch").rglob("*.py")
    used = {name for path in sources for name in re.findall(r"\bfrom hs_formats\.(\w+) import", path.read_text())}
    assert used <= {*STANDARD_LIBRARY_ONLY}
    assert len(used) > 8
