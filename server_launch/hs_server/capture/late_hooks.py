"""Plugin mode before SGLang 0.5.11, without a registry of hooks: methods are wrapped when their module is imported."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["LateHooks"]

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class LateHooks(importlib.abc.MetaPathFinder):
    """Hooks on methods of modules that are yet to be imported. `applied` names the targets that were wrapped."""

    def __init__(self) -> None:
        self.applied: set[str] = set()
        self._wraps: dict[str, list[tuple[str, Wrap]]] = {}

    def after(self, target: str, hook: Callable[..., Any]) -> None:
        """``hook(result, *args, **kwargs)`` runs after `target`, "module.Class.method"; its result is the call's."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                return hook(original(*args, **kwargs), *args, **kwargs)

            return wrapped

        self._add(target, wrap)

    def around(self, target: str, hook: Callable[..., Any]) -> None:
        """``hook(original, *args, **kwargs)`` runs instead of `target`."""

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                return hook(original, *args, **kwargs)

            return wrapped

        self._add(target, wrap)

    def install(self) -> None:
        """From here on imports are watched.

        Raises:
            RuntimeError: a module was imported already, too early for hooks.
        """
        if early := [name for name in self._wraps if name in sys.modules]:
            raise RuntimeError(f"{', '.join(early)} was imported before the hooks were installed")
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with a loader that wraps when the module has run."""
        if fullname not in self._wraps:
            return None
        del path, target
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, functools.partial(self._apply, fullname))
        return spec

    def _add(self, target: str, wrap: Wrap) -> None:
        module, _, name = target.rpartition(".")
        module, _, owner = module.rpartition(".")
        self._wraps.setdefault(module, []).append((f"{owner}.{name}", wrap))

    def _apply(self, module_name: str, module: ModuleType) -> None:
        for path, wrap in self._wraps[module_name]:
            owner_name, _, name = path.partition(".")
            owner = getattr(module, owner_name, None)
            original = getattr(owner, name, None)
            if original is not None:
                setattr(owner, name, wrap(original))
                self.applied.add(f"{module_name}.{path}")


class _Loader(importlib.abc.Loader):
    """Another loader, and something to be done with the module that it has run."""

    def __init__(self, loader: importlib.abc.Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
