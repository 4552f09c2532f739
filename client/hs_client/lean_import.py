"""transformers for its tokenizers alone: without torch it takes a fifth of the memory and a third of the time."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator

__all__ = ["usable_torchvision", "without_torch"]

_QUIET = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Import transformers inside, for the first time, and it will not load torch, then or later.

    For a process that needs tokenizers only. Where torch or transformers is loaded already nothing changes.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    names = ("torch", "torchvision", "torchaudio")
    quiet = os.environ.get(_QUIET)
    os.environ[_QUIET] = "1"
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import transformers  # noqa: F401

        yield
    finally:
        for name in names:
            del sys.modules[name]
        if quiet is None:
            del os.environ[_QUIET]
        else:
            os.environ[_QUIET] = quiet


@contextlib.contextmanager
def usable_torchvision() -> Iterator[None]:
    """Hide a torchvision that does not fit the installed torch: transformers imports it, but no tokenizer needs it."""
    hidden = False
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except (ImportError, OSError, RuntimeError, AttributeError):
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            sys.modules["torchvision"] = None  # type: ignore[assignment]
            hidden = True
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torchvision"]
