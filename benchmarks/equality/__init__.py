"""Whether records under CUDA graphs equal eager ones, and those of all ranks each other."""

from __future__ import annotations
