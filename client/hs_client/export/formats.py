"""The export formats by name. A format's module is imported when it is asked for: each needs other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hs_client.export.errors import MissingPackage

if TYPE_CHECKING:
    from hs_client.export.layout import Format

__all__ = ["format_class"]


def format_class(name: str) -> type[Format]:
    """The class behind ``--format name``.

    Raises:
        MissingPackage: a package that it needs is not installed.
    """
    try:
        match name:
            case "specforge":
                from hs_client.export.specforge import SpecForge

                return SpecForge
            case "speculators":
                from hs_client.export.speculators import Speculators

                return Speculators
            case "modelopt":
                from hs_client.export.modelopt import ModelOpt

                return ModelOpt
            case "angelslim":
                from hs_client.export.angelslim import AngelSlim

                return AngelSlim
            case "deepspec":
                from hs_client.export.deepspec import DeepSpec

                return DeepSpec
            case "safetensors":
                from hs_client.export.safetensors import PlainSafetensors

                return PlainSafetensors
            case _:
                from hs_client.export.pt import PlainPt

                return PlainPt
    except ModuleNotFoundError as error:
        raise MissingPackage(format=name, package=error.name) from None
