"""The options of `hs-client run` for many nodes. Nothing else is imported before they are used."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hs_formats.errors import UsageError

__all__ = ["CLUSTER_OPTIONS", "cluster_options", "first_node", "many_nodes", "run_many"]

_KEY = "hs_client.cluster"
_ALONE = ("limit", "shard", "dry_run", "leases")
"""Options of one client that has all rows to itself."""

CLUSTER_OPTIONS = frozenset(
    {"--ray", "--nodes", "--node-resource", "--node-gpus", "--node-server", "--node-mover", "--summary-json"}
)
"""Options of the driver: the clients do not get them."""


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_KEY, {})[parameter.name] = value


def _keep_address(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Checks it at once: of the files behind ``--ray`` the first one is taken for it, and would be missed as a file."""
    if value is not None:
        from hs_client.cluster.settings import parse_address

        value = parse_address(value)
    _keep(context, parameter, value)


def _option(*names: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, expose_value=False, callback=settings.pop("callback", _keep), **settings)


_OPTIONS = (
    _option(
        "--ray",
        metavar="[ADDRESS]",
        is_flag=False,
        flag_value="auto",
        callback=_keep_address,
        help="Run on the nodes of a Ray cluster, at HOST:PORT or the one that this machine belongs to. Needs the"
        " extra `ray`. Write it last, or --ray=ADDRESS.",
    ),
    _option("--nodes", type=click.IntRange(1), metavar="N", help="With --ray: how many nodes.  [default: all of them]"),
    _option(
        "--node-resource",
        metavar="NAME",
        default="",
        help="A node is what has this custom resource, a unit for each run.",
    ),
    _option(
        "--node-gpus",
        type=click.FloatRange(0),
        metavar="G",
        help="GPUs that a run takes of a node.  [default: 8; with --node-resource 0]",
    ),
    _option(
        "--node-server",
        metavar="ARGS",
        help="Have `hs-server launch ARGS` on each node where no server runs, and stop it at the end. Without it, one"
        " must run on each node. ARGS are one word of the shell: quote them.",
    ),
    _option(
        "--node-mover",
        metavar="ARGS",
        help="The same of `hs-mover ARGS`.",
    ),
)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command these options. Their values are kept with click's context, not passed on."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def many_nodes() -> bool:
    """The command that runs was called with --ray.

    Raises:
        UsageError: it was not, but with an option that goes with it.
    """
    context = click.get_current_context()
    if context.meta[_KEY]["ray"] is not None:
        return True
    for name in context.meta[_KEY]:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} goes with --ray")
    return False


def first_node(servers: Sequence[str], scratch: Path | None) -> tuple[tuple[str, ...], Path | None]:
    """--server and --scratch as they are on node 0, for whoever knows nothing of ``{node}``."""
    from hs_client.cluster.arguments import of_node

    return tuple(of_node(each, 0) for each in servers), None if scratch is None else Path(of_node(str(scratch), 0))


def run_many(
    *,
    files: Sequence[Path],
    servers: Sequence[str],
    scratch: Path | None,
    progress_interval_s: float,
    summary_json: Path | None,
) -> int:
    """Run the present command on many nodes; returns the exit code. `servers` and `scratch` are as given.

    Raises:
        HsError: with the exit code that belongs to it.
    """
    from hs_client.cluster.actor import hs_version
    from hs_client.cluster.command import run_cluster
    from hs_client.cluster.settings import ClusterSettings, split_arguments
    from hs_formats.control import default_scratch

    context = click.get_current_context()
    given = context.meta[_KEY]
    for name in _ALONE:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --ray")
    if any(str(file) == "-" for file in files):
        raise UsageError("standard input (-) does not go with --ray: other nodes cannot read it")
    server, mover = (
        split_arguments(f"--{name}", given[name.replace("-", "_")]) for name in ("node-server", "node-mover")
    )
    url, _, own = servers[0].partition("=")
    if len(servers) > 1 and (server is not None or mover is not None):
        raise UsageError("--node-server and --node-mover are for one --server a node: start the others yourself")
    resource = given["node_resource"]
    gpus = given["node_gpus"]
    if gpus is None:
        gpus = 0.0 if resource else 8.0
    if not gpus and not resource:
        raise UsageError("--node-gpus 0 needs a --node-resource that says which nodes are meant")
    settings = ClusterSettings(
        address=given["ray"],
        nodes=given["nodes"],
        resource=resource,
        gpus=gpus,
        server=server,
        mover=mover,
        url=url,
        scratch=Path(own) if own else scratch or default_scratch(),
        command=context.command,
        arguments=tuple(sys.argv[1:]),
        folder=str(Path.cwd()),
        environment={
            name: value for name, value in os.environ.items() if name.startswith("HS_") or name == "SGLANG_HS_DUMP_DIR"
        },
        version=hs_version(),
        progress_interval_s=progress_interval_s,
        summary_json=summary_json,
        repeat=shlex.join(["hs-client", *sys.argv[1:]]),
    )
    return run_cluster(settings)
