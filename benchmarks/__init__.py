"""Benchmarks and long checks of hs-extract, run from a checkout: ``python -m benchmarks list``.

They are not part of the installed package. Where hs-extract itself is not installed, its folders of this checkout are
put on the path, so that a GPU machine needs SGLang's own Python and this checkout, nothing else.
"""

from __future__ import annotations

from benchmarks.checkout import make_importable

make_importable()
