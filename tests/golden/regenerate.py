"""Writes the golden files anew: run it after a change of a format that is meant, with a new format version."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from golden_files import GOLDEN, build

for name, content in build().items():
    path = GOLDEN / name
    changed = not path.is_file() or path.read_bytes() != content
    if changed:
        path.write_bytes(content)
    print(f"{'written  ' if changed else 'unchanged'} {name}")
