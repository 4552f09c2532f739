"""Checks before anything is started: whatever is certain to fail later is refused here, with the remedy."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hs_formats.errors import PreflightError
from hs_server.capture.families import FAMILIES, WRAPPERS, family_of_architectures
from hs_server.capture.mode import PLUGIN, SOURCE
from hs_server.patch.installation import find_installation
from hs_server.processes import command_line, port_owner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hs_server.patch.installation import Installation
    from hs_server.plan import LaunchPlan

__all__ = [
    "CAPTURE_PLUGIN",
    "CPU_PLUGIN",
    "PLUGIN_GROUP",
    "PluginView",
    "check_model_class",
    "check_plugins",
    "check_port",
    "check_sglang",
    "check_source",
    "view_plugins",
]

PLUGIN_GROUP = "sglang.srt.plugins"
CAPTURE_PLUGIN = "hs_capture"
CPU_PLUGIN = "hs_cpu_profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginView:
    """What SGLang, started from this interpreter, would find in its plugin group."""

    installed: frozenset[str]
    allowed: frozenset[str] | None

    def reason_missing(self, plugin: str) -> str | None:
        """Why SGLang would not load `plugin`, with the remedy; None where it would."""
        if plugin not in self.installed:
            return (
                f"SGLang's plugin `{plugin}` is not installed in {sys.prefix}\n"
                f"  install hs-extract into SGLang's own environment: {sys.executable} -m pip install hs-extract"
            )
        if self.allowed is not None and plugin not in self.allowed:
            return (
                f"SGLANG_PLUGINS={','.join(sorted(self.allowed))} excludes the plugin `{plugin}`\n"
                f"  add {plugin} to SGLANG_PLUGINS, or unset it"
            )
        return None


def view_plugins(environment: Mapping[str, str]) -> PluginView:
    """Read the installed entry points and SGLANG_PLUGINS."""
    allowed = {name.strip() for name in environment.get("SGLANG_PLUGINS", "").split(",") if name.strip()}
    return PluginView(
        installed=frozenset(point.name for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)),
        allowed=frozenset(allowed) or None,
    )


def check_plugins(plan: LaunchPlan, view: PluginView) -> None:
    """Make sure that SGLang will load the plugins that the launch relies on.

    Raises:
        PreflightError: it would not.
    """
    if not plan.sglang.plugins:
        return  # our main module brings them
    needed = [CAPTURE_PLUGIN] if plan.capture_mode == PLUGIN else []
    if plan.profile.cpu:
        # Without it MLA models run, and give wrong states without a word.
        needed.append(CPU_PLUGIN)
    for plugin in needed:
        if (reason := view.reason_missing(plugin)) is not None:
            raise PreflightError(reason)


def check_model_class(plan: LaunchPlan) -> None:
    """Refuse a model whose class, by its config.json, is not one whose states are known: loading it would be in vain.

    Raises:
        PreflightError: names the class and the families.
    """
    if plan.request.capture is None or plan.model is None or not plan.model.architectures:
        return
    if plan.environment.get("SGLANG_EXTERNAL_MODEL_PACKAGE"):
        return  # classes of the user's own; the capture looks at what was loaded
    if family_of_architectures(plan.model.architectures) is None:
        known = ", ".join([*(family.name for family in FAMILIES), *WRAPPERS.values()])
        classes = ", ".join(plan.model.architectures)
        raise PreflightError(
            f"--model-path {plan.request.model_path}: what a {classes} captures is not known to be the stream entering "
            f"a layer\n  known are {known}; serve it with --no-capture"
        )


def check_sglang() -> str:
    """The version of the installed SGLang, "unknown" where it has no metadata.

    Raises:
        PreflightError: there is none.
    """
    if importlib.util.find_spec("sglang") is None:
        raise PreflightError(
            f"SGLang is not installed in {sys.prefix}\n"
            "  run hs-server from SGLang's own environment, with hs-extract installed there"
        )
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def check_source(plan: LaunchPlan) -> Installation | None:
    """In source mode the patched installation that the server will import; None in plugin mode.

    Raises:
        PreflightError: it is not patched, or not what would run.
    """
    if plan.capture_mode != SOURCE:
        return None
    installation = find_installation()
    if (reason := installation.reason_not_patched()) is not None:
        raise PreflightError(reason)
    return installation


def check_port(host: str, port: int) -> None:
    """Make sure that a server can listen on `host`:`port`.

    Raises:
        PreflightError: it is taken (the owner is named where it can be seen), or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise PreflightError(f"--host {host}: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: connections of a server that has ended must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise PreflightError(f"cannot listen on {host}:{port}: {error.strerror}") from None
            owner = port_owner(port)
            by = f"pid {owner} ({command_line(owner)[:120]})" if owner is not None else "a process of another user"
            raise PreflightError(
                f"port {port} is taken by {by}\n"
                f"  stop it (`hs-server stop --port {port}` if it is one of ours), or choose another --port"
            ) from None
