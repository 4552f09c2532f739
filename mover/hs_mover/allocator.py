"""Freed memory stays in the process: one part after the other needs blocks of the same sizes.

By default glibc takes each large block from the kernel and gives it back when it is freed. The kernel then clears all
its pages again for the next part, which was up to a third of the work of encoding.
"""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 32 << 20
"""Larger blocks than any that a part of common shape needs still come from the kernel, and go back."""
_TRIM_BYTES = 256 << 20


def keep_freed_memory() -> bool:
    """Tell this process's allocator; True when it understands. Others than glibc are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
