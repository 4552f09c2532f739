"""A launch, worked out before anything is started: argv, environment and what is to be captured. Pure functions."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hs_formats.boundaries import boundary_table, resolve_boundaries
from hs_formats.errors import FormatError, UsageError
from hs_server import env
from hs_server.arguments import Topology, merge_arguments, refuse_launcher_flags
from hs_server.capture.mode import PLUGIN
from hs_server.capture_mode import check_mode, mode_arguments, refuse_unknown_flags
from hs_server.model_config import ModelConfig, read_model_config
from hs_server.nccl_profiles import nccl_environment
from hs_server.profiles import Profile, find_profile
from hs_server.versions import Release, release

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENV_LAUNCH_ID", "CaptureRequest", "LaunchPlan", "LaunchRequest", "make_plan"]

# Inherited by every process of a launch, so that all of them can be found again.
ENV_LAUNCH_ID = "HS_LAUNCH_ID"

# Variables of the launcher's own that must not leak in from the surrounding shell.
_OWN_VARIABLES = (
    env.DUMP_DIR,
    env.BOUNDARIES,
    env.WRITERS,
    env.NONCE,
    env.MODE,
    "SGLANG_HS_CPU_PROFILE",
    ENV_LAUNCH_ID,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What is to be captured, and where to; at most one of `boundaries` and `eagle_ids` is given."""

    dump_dir: Path
    boundaries: tuple[int, ...] | None = None
    eagle_ids: tuple[int, ...] | None = None
    writers: str = "first"
    mode: str = PLUGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The launch as the user asked for it; `capture` is None with --no-capture."""

    model_path: str
    capture: CaptureRequest | None
    profile: str = "default"
    nccl_profile: str = "default"
    host: str = "127.0.0.1"
    port: int = 8000
    pass_through: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """All that is needed to start the server.

    `boundaries` is None where they are left to the capture inside SGLang, which then knows the depth of the model.
    `capture_mode` is ``plugin`` or ``source``, or empty where nothing is captured.
    """

    request: LaunchRequest
    profile: Profile
    sglang: Release
    capture_mode: str
    launch_id: str
    nonce: str
    argv: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    topology: Topology
    model: ModelConfig | None
    boundaries: tuple[int, ...] | None
    overridden: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the server."""
        return f"http://{self.reachable_host}:{self.request.port}"

    @property
    def reachable_host(self) -> str:
        """The host to connect to: a wildcard address is none."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.request.host, self.request.host)  # noqa: S104
        return f"[{host}]" if ":" in host else host

    def boundary_lines(self) -> list[str]:
        """The boundaries in every numbering in use, or a line saying that SGLang will tell."""
        if self.boundaries is None:
            return ["boundaries: chosen by the capture once the model's depth is known"]
        if self.model is None:
            return [f"boundaries {list(self.boundaries)} (the model's depth is not known before it is loaded)"]
        return boundary_table(self.boundaries, self.model.num_layers)


def make_plan(request: LaunchRequest, environment: Mapping[str, str], *, sglang_version: str = "unknown") -> LaunchPlan:
    """Work out a launch for `request` from the surrounding `environment`; starts and writes nothing.

    Raises:
        UsageError: profile, model, boundaries or pass-through arguments are wrong.
        PreflightError: this version of SGLang cannot do it.
    """
    sglang = release(sglang_version)
    if Path(request.model_path).is_dir():
        # Clients, elsewhere, take tokenizer and model from the path that the server tells.
        request = replace(request, model_path=str(Path(request.model_path).absolute()))
    profile = find_profile(request.profile)
    refuse_launcher_flags(request.pass_through)
    refuse_unknown_flags(request.pass_through, sglang)
    model = read_model_config(request.model_path, pass_through=request.pass_through)
    topology = Topology.of(request.pass_through)
    architectures = model.architectures if model else ()
    boundaries = _boundaries(request.capture, profile=profile, model=model)
    capture_mode = ""
    if request.capture is not None:
        capture_mode = request.capture.mode
        check_mode(capture_mode, sglang, architectures=architectures)
    nonce = secrets.token_hex(8)
    launch_id = secrets.token_hex(8)
    wanted = profile.arguments
    added = nccl_environment(request.nccl_profile, environment)
    if profile.cpu:
        from hs_server.cpu_profile.settings import CPU_ARGUMENTS, cpu_environment

        wanted = (*wanted, *CPU_ARGUMENTS)
        added |= cpu_environment(
            environment,
            model_path=request.model_path,
            architectures=architectures,
            ranks=topology.local_ranks,
        )
    if capture_mode:
        wanted += mode_arguments(
            capture_mode, sglang, architectures=architectures, topology=topology, given=request.pass_through
        )
    kept, overridden = merge_arguments(wanted, request.pass_through)
    argv = (
        sys.executable,
        *("-m", sglang.main_module),
        *("--model-path", request.model_path),
        *("--host", request.host),
        *("--port", str(request.port)),
        *kept,
        *request.pass_through,
    )
    inherited = {name: value for name, value in environment.items() if name not in _OWN_VARIABLES}
    added[ENV_LAUNCH_ID] = launch_id
    if "SPT_NOENV" not in environment:
        # SGLang renames its processes, which otherwise overwrites the environment that /proc shows.
        added["SPT_NOENV"] = "1"
    if request.capture is not None:
        added |= _capture_environment(request.capture, boundaries=boundaries, nonce=nonce, mode=capture_mode)
    return LaunchPlan(
        request=request,
        profile=profile,
        sglang=sglang,
        capture_mode=capture_mode,
        launch_id=launch_id,
        nonce=nonce,
        argv=argv,
        environment=inherited | added,
        topology=topology,
        model=model,
        boundaries=boundaries,
        overridden=overridden,
    )


def _boundaries(
    capture: CaptureRequest | None, *, profile: Profile, model: ModelConfig | None
) -> tuple[int, ...] | None:
    if capture is None:
        return None
    given, eagle_ids = capture.boundaries, capture.eagle_ids
    if given is None and eagle_ids is None:
        given = profile.boundaries
    if model is not None:
        try:
            return resolve_boundaries(model.num_layers, boundaries=given, eagle_ids=eagle_ids)
        except FormatError as error:
            raise UsageError(f"{error}\n  choose with --boundaries or --eagle-ids") from None
    # The depth is unknown here; the capture checks the range when the model is loaded.
    if eagle_ids is not None:
        given = tuple(i + 1 for i in eagle_ids)
    return None if given is None else tuple(sorted(given))


def _capture_environment(
    capture: CaptureRequest, *, boundaries: tuple[int, ...] | None, nonce: str, mode: str
) -> dict[str, str]:
    added = {env.DUMP_DIR: str(capture.dump_dir), env.WRITERS: capture.writers, env.NONCE: nonce, env.MODE: mode}
    if boundaries is not None:
        added[env.BOUNDARIES] = ",".join(map(str, boundaries))
    return added
