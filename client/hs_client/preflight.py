"""Everything that is checked before the first request, each failure one line with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from hs_client._http import Denied, RequestError, ServerClient, api_key, shared_tls
from hs_client.errors import DatasetMismatch, DestinationBroken, NoMover, NoPlugin, NoServer, ServerDenies
from hs_client.settings import server_port
from hs_formats.control import ControlFolder, Marker, MoverState, now_s
from hs_formats.dataset import DatasetInfo, DatasetPaths, dataset_paths
from hs_formats.errors import FormatError, PreflightError
from hs_formats.location import parse_location

__all__ = ["Place", "ServerFacts", "check_dataset", "check_mover", "check_server", "find_place", "marker_differences"]

_PREFLIGHT_S = 10.0

_MUST_AGREE = (
    "config_hash",
    "num_layers",
    "boundaries",
    "dtype",
    "hidden_size",
    "writers",
    "copies",
    "bytes_per_token",
    "chunk_size",
    "context_length",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Scratch, and the dataset that the mover there stores to."""

    control: ControlFolder
    mover: MoverState
    paths: DatasetPaths


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server's marker and what it says about itself. `longest_prompt`: in tokens, 0 where it does not say.
    `info`: its ``/server_info``, empty where it has none."""

    url: str
    port: int
    marker: Marker
    ranks: int
    tokenizer: str
    longest_prompt: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)


def find_place(scratch: Path, dataset: str) -> Place:
    """Where the records will lie, from the mover's last state; whether it lives is `check_mover`'s question.

    Raises:
        NoMover: none ever ran on this scratch.
        DestinationBroken: the books of the dataset cannot be fetched from an object store.
    """
    control = ControlFolder(scratch)
    try:
        mover = control.read_mover()
    except (FormatError, OSError) as error:
        raise NoMover(scratch=scratch, reason=f"its state cannot be read: {error}") from None
    if mover is None:
        reason = "none ever did" if scratch.is_dir() else "there is no such folder"
        raise NoMover(scratch=scratch, reason=reason)
    try:
        paths = dataset_paths(parse_location(mover.dst) / dataset)
    except OSError as error:
        raise DestinationBroken(path=mover.dst, reason=error.strerror or error) from None
    return Place(control, mover, paths)


def check_mover(place: Place) -> MoverState:
    """The mover's present state.

    Raises:
        NoMover: its heartbeat is stale, or it stops.
    """
    scratch = place.control.scratch
    mover = place.control.read_mover()
    if mover is None:
        raise NoMover(scratch=scratch, reason="none ever did")
    if not mover.alive(now_s()):
        silent_s = now_s() - mover.heartbeat_s
        how = "it is stopping" if mover.state == "stopping" else "the last one is silent"
        raise NoMover(scratch=scratch, reason=f"{how}, last heartbeat {silent_s:.0f} s ago")
    return mover


async def check_server(url: str, control: ControlFolder) -> ServerFacts:
    """The server answers and its capture is armed in this scratch.

    Raises:
        NoServer: nobody answers.
        ServerDenies: it wants another API key.
        NoPlugin: a server answers, but no living scheduler process with its port left a marker here.
        PreflightError: its ranks disagree.
    """
    port = server_port(url)
    client = ServerClient(url, tls=shared_tls(), read_timeout_s=_PREFLIGHT_S, key=api_key())
    try:
        info = await client.model_info()
        settings = await _server_info(client)
    except Denied as error:
        raise ServerDenies(url=url, reason=error) from None
    except RequestError as error:
        raise NoServer(url=url, reason=error) from None
    finally:
        await client.close()
    markers = await anyio.to_thread.run_sync(lambda: control.live_markers(port=port))
    if not markers:
        raise NoPlugin(url=url, port=port, scratch=control.scratch, found=_what_is_there(control))
    markers.sort(key=lambda marker: (marker.dp_rank, marker.rank))
    first = markers[0]
    for other in markers[1:]:
        differences = marker_differences(first, other)
        if differences:
            raise PreflightError(f"ranks of the server at {url} disagree: {'; '.join(differences)}; restart it")
    tokenizer = first.tokenizer or str(info.get("tokenizer_path") or info.get("model_path") or first.model)
    return ServerFacts(url, port, first, len(markers), tokenizer, _longest_prompt(settings), settings)


async def _server_info(client: ServerClient) -> dict[str, Any]:
    try:
        return await client.server_info()
    except RequestError:
        return {}


def _longest_prompt(settings: Mapping[str, Any]) -> int:
    """SGLang refuses prompts of ``max_req_input_len`` tokens and more: less than the context, and than its KV cache."""
    limit = settings.get("max_req_input_len")
    return limit - 1 if isinstance(limit, int) else 0


def marker_differences(old: Marker, new: Marker, *, names: Sequence[str] = _MUST_AGREE) -> list[str]:
    """What makes records of two scheduler processes unfit for one run, or for what else needs `names` to agree."""
    return [
        f"{name}: {getattr(old, name)} and {getattr(new, name)}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]


def _what_is_there(control: ControlFolder) -> str:
    if not control.root.is_dir():
        return "there is no such folder"
    markers = control.markers()
    live = sorted({marker.port for marker, alive in markers if alive})
    if live:
        return f"markers there are of port {', '.join(map(str, live))}"
    return "markers there are of servers that have ended" if markers else "there is no marker"


def _generated_or_not(there: DatasetInfo, asked: DatasetInfo) -> str:
    """Whether `--generate` is what was forgotten, or is one too many."""
    if bool(there.generation) == bool(asked.generation):
        return ""
    return f" (it was made {'with' if there.generation else 'without'} --generate)"


def check_dataset(paths: DatasetPaths, info: DatasetInfo, *, create: bool) -> bool:
    """Create the dataset, if asked to, or see that it takes records like these. True when it is new.

    Raises:
        DatasetMismatch: it does not take them.
        DestinationBroken: the destination cannot be written or what lies there is no dataset.
    """
    try:
        if paths.local and not paths.root.parent.is_dir():
            raise DestinationBroken(path=paths.root.parent, reason="the mover's destination is no folder here")
        new = False
        if create:
            paths.create()
            new = paths.write_info(info)
        there = paths.read_info()
    except (OSError, FormatError) as error:
        raise DestinationBroken(path=paths.shown, reason=error) from None
    if there is None and not create:
        return True
    if there is None:
        raise DestinationBroken(path=paths.info, reason="it vanished")
    differences = there.differences(info)
    if differences:
        raise DatasetMismatch(path=paths.shown, differences="; ".join(differences) + _generated_or_not(there, info))
    return new
