"""A triton that only decorates, for a server that never compiles a kernel.

SGLang imports triton in many modules to decorate kernels which a CPU never launches. The real wheel is 200 MB (700 MB
on disk), so where it is absent every `triton.*` module is made up on demand: capitalised names are empty classes,
other names are modules that are callable as decorators. `triton.backends.backends` is empty, which is how torch's own
probe learns that no GPU compiler is there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TritonFinder", "install"]

VERSION = "3.7.0"


class _Stub:
    """Base of every made-up class: takes any arguments, also as a base class."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__()


class _Config(_Stub):
    def __init__(
        self, kwargs: dict[str, Any] | None = None, num_warps: int = 4, num_stages: int = 2, **more: object
    ) -> None:
        super().__init__(**more)
        self.kwargs = kwargs or {}
        self.num_warps = num_warps
        self.num_stages = num_stages


class _Constexpr(_Stub):
    def __init__(self, value: object = None) -> None:
        super().__init__()
        self.value = value


class _OutOfResourcesError(Exception):
    pass


class _PtxasError(Exception):
    pass


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_two(n: int) -> int:
    return 1 if n <= 1 else 1 << (n - 1).bit_length()


def _triton_key() -> str:
    return "triton-mock"


# The few names that are used at import time for more than decoration.
_REAL: dict[str, dict[str, object]] = {
    "triton": {
        "__version__": VERSION,
        "Config": _Config,
        "cdiv": _ceil_div,
        "next_power_of_2": _next_power_of_two,
    },
    "triton.backends": {"backends": {}},
    "triton.compiler.compiler": {"triton_key": _triton_key},
    "triton.language": {"constexpr": _Constexpr},
    "triton.runtime.autotuner": {"OutOfResources": _OutOfResourcesError, "PTXASError": _PtxasError},
    "triton.runtime.cache": {"triton_key": _triton_key},
}


class _MockModule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__package__ = name
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        made: object = sys.modules.get(full_name)
        if made is None:
            if name[:1].isupper():
                made = type(name, (_Stub,), {"__module__": self.__name__})
            else:
                made = sys.modules[full_name] = _MockModule(full_name)
        setattr(self, name, made)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Act as a decorator, bare or with arguments."""
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            return function

        return decorate


class TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes up `triton` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname == "triton" or fullname.startswith("triton."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _MockModule(spec.name)
        for name, value in _REAL.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def install() -> bool:
    """Make `import triton` work where no triton is installed; returns whether the mock stands in."""
    if any(isinstance(finder, TritonFinder) for finder in sys.meta_path):
        return True
    if "triton" in sys.modules or importlib.util.find_spec("triton") is not None:
        return False
    sys.meta_path.append(TritonFinder())
    return True
