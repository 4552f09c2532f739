"""Stand-in for SGLang's kernel package, which has no wheel for a CPU without CUDA libraries.

SGLang's CPU engine imports a handful of names from it (speculative decoding, KV moves) that a plain prefill or decode
never calls. Every name exists here, and calling one raises.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0.0.0+hs.cpu.stub"


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        del args, kwargs
        raise NotImplementedError(f"sgl_kernel.{name}: the cpu profile has no native kernels")

    missing.__name__ = name
    return missing
