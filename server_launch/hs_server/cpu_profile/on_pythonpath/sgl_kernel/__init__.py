"""Stand-in for SGLang's kernel package, which has no wheel for a CPU without CUDA libraries.

SGLang's CPU engine imports names from it and, before 0.5.11, from modules of it (speculative decoding, KV moves,
quantisation) that a plain prefill or decode never calls. Every name and every module exists here; calling one raises.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

__version__ = "0.0.0+hs.cpu.stub"


class _Missing:
    """A kernel, or something that holds kernels."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{self.__name__}: the cpu profile has no native kernels")


class _Submodule(ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        ours = fullname.startswith(__name__ + ".")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def __getattr__(name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(f"{__name__}.{name}")


sys.meta_path.append(_Submodules())
