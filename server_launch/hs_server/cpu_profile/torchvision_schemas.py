"""Makes `import torchvision` work beside a CPU build of torch.

The index's torchvision wheel is built for CUDA. Beside a CPU build of torch its C library does not load, so the
operators `nms` and `qnms` have no schema and the import fails, and with it much of transformers. Giving the two a
schema is enough for the Python side; nothing ever calls them. Where the C library does load, nothing is declared,
because it would then be declared twice.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["install"]

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# torch forgets a library's operators when the Python object is collected.
_kept: list[Any] = []
_installed = False


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Finds nothing itself: declares the schemas when torchvision is first asked for, then leaves the path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare()
        return None


def install() -> None:
    """Declare the schemas just before torchvision's first import in this process; may be called again."""
    global _installed
    # A flag rather than a look at sys.modules: others ask for torchvision's spec without importing it.
    if _installed or "torchvision" in sys.modules:
        return
    _installed = True
    sys.meta_path.insert(0, _BeforeTorchvision())


def _declare() -> None:
    import torch

    if torch.version.cuda is not None or _native_library_loads(torch):
        return
    library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        library.define(operator + _SIGNATURE)
    _kept.append(library)


def _native_library_loads(torch: Any) -> bool:
    """Whether torchvision's own C library loads here; loading it registers its operators for good."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            continue
        return True
    return False
