"""The command line of `hs-mover`. Everything heavy is imported after the arguments are known to be good."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from hs_formats.codec_names import CODEC_NAMES, DEFAULT_CODEC
from hs_formats.control import default_scratch
from hs_formats.errors import HsError, UsageError
from hs_formats.location import SCHEMES, Location, ObjectUrl, parse_location
from hs_formats.printable import printable

__all__ = ["main"]

_EPILOG = """
\b
Examples
  hs-mover --src /dev/shm/sglang_hs --dst /data
  hs-mover --src /dev/shm/sglang_hs --dst /data --limit-rate 200M
  hs-mover --src /dev/shm/sglang_hs --dst s3://bucket/data
  hs-mover --src /dev/shm/a --src /dev/shm/b --dst /data --once
  hs-mover status --src /dev/shm/sglang_hs
  hs-mover pack states.pt -o states.pt.hsz

\b
Sizes are bytes, or like 64M, 1GiB (both in 1024s) and 500MB (in 1000s).
Each option can be given in the environment too: HS_MOVER_SRC, HS_MOVER_DST, HS_MOVER_HIGH ...

\b
Exit codes
  0  stopped as asked, or with --once everything was moved
  1  `unpack`: the file is damaged
  2  wrong use
  3  refused: another mover runs on this scratch, or a folder cannot be used
  5  storage: with --once parts are left; `status`: no mover is alive
"""


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from hs_mover.config import parse_size

        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class _CodecName(click.ParamType[str]):
    name = "codec"

    def __init__(self, *excluded: str) -> None:
        self._names = [name for name in CODEC_NAMES if name not in excluded]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        del param, ctx
        return f"[{'|'.join(self._names)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self._names:
            self.fail(f"{value!r} is not one of {', '.join(self._names)}", param, ctx)
        return str(value)


class _ScratchPath(click.Path):
    """A local folder; a URL, which `click.Path` would take for a path, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and re.match(rf"({'|'.join(SCHEMES)}):", value):
            self.fail(f"{value}: scratch is a local folder (tmpfs); an object store goes to --dst", param, ctx)
        return super().convert(value, param, ctx)


class _LocationType(click.ParamType[Location]):
    name = "location"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        del param, ctx
        return "DIRECTORY|URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        if isinstance(value, (Path, ObjectUrl)):
            return value
        where = parse_location(value)
        try:
            is_file = isinstance(where, Path) and where.exists() and not where.is_dir()
        except OSError as error:
            self.fail(f"Directory {value!r}: {error.strerror}.", param, ctx)
        if is_file:
            self.fail(f"Directory {value!r} is a file.", param, ctx)
        return where


@click.group(
    "hs-mover",
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={
        "auto_envvar_prefix": "HS_MOVER",
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
@click.option(
    "--src",
    "sources",
    multiple=True,
    envvar="HS_MOVER_SRC",
    type=_ScratchPath(),
    help="Scratch: the tmpfs folder that the server writes to. Made when missing. May be given several times.",
)
@click.option(
    "--dst",
    type=_LocationType(),
    help="Destination: datasets are folders below it. Made when missing. Or s3://BUCKET/PREFIX, gs:// or az://, which "
    "needs the extra `s3`.",
)
@click.option(
    "--codec",
    type=_CodecName(),
    default=DEFAULT_CODEC,
    show_default=True,
    help="How parts are stored; none only moves.",
)
@click.option(
    "--codec-floor",
    type=click.Choice(["default", "fast", "none"]),
    default="fast",
    show_default=True,
    help="Cheapest codec that `default` may give way to while parts pile up and the encoders are the limit; `default`: "
    "never.",
)
@click.option(
    "--high", type=float, default=0.80, show_default=True, help="Fraction of the capacity that clients may fill."
)
@click.option(
    "--low", type=float, default=0.60, show_default=True, help="A scratch above --high holds clients until below this."
)
@click.option(
    "--reserve",
    type=_Size(),
    help="Bytes of scratch left to others. Default: min(1 GiB, 5%) on the file system of /dev/shm, where NCCL keeps "
    "its buffers, else 0.",
)
@click.option("--limit-rate", type=_Size(), help="Read at most so many bytes of scratch a second.")
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    help="Worker threads. Default: the cores, at least 2 (8 for an object store), at most 16.",
)
@click.option("--once", is_flag=True, help="Move what is there, then exit.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve numbers for Prometheus at http://127.0.0.1:PORT/metrics; 0 takes any free port. Needs the extra "
    "`metrics`.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--verbose", is_flag=True, help="A log line for each part.")
@click.version_option(package_name="hs-extract", prog_name="hs-mover")
@click.pass_context
def _cli(
    ctx: click.Context,
    sources: tuple[Path, ...],
    dst: Location | None,
    codec: str,
    codec_floor: str,
    high: float,
    low: float,
    reserve: int | None,
    limit_rate: int | None,
    threads: int | None,
    once: bool,
    metrics_port: int | None,
    log_format: str,
    verbose: bool,
) -> None:
    """Move the hidden-state parts that a server dumps into tmpfs to a dataset folder, checked and compressed.

    A part leaves scratch only after its stored form and its manifest line are on disk. The mover may be killed at any
    moment; the next one goes on. It tells clients how far scratch may fill, and holds them while the destination is
    full or gone.
    """
    if ctx.invoked_subcommand is not None:
        return
    if not sources or dst is None:
        raise UsageError(
            "--src and --dst must be given, as in: hs-mover --src /dev/shm/sglang_hs --dst /data (see hs-mover --help)"
        )
    from hs_mover.allocator import keep_freed_memory
    from hs_mover.config import MoverConfig, default_threads
    from hs_mover.daemon import run_mover
    from hs_mover.logs import set_up_logging
    from hs_mover.view import wanted

    config = MoverConfig(
        sources=tuple(path.absolute() for path in sources),
        dst=dst.absolute() if isinstance(dst, Path) else dst,
        codec=codec,
        codec_floor=codec_floor,
        high=high,
        low=low,
        reserve_bytes=reserve,
        limit_bytes_per_s=limit_rate,
        once=once,
        threads=threads or default_threads(dst),
        metrics_port=metrics_port,
        view=wanted(log_format),
    )
    set_up_logging("json" if log_format == "json" else "text", verbose=verbose, view=config.view)
    keep_freed_memory()
    run_mover(config)


@_cli.command("status")
@click.option(
    "--src",
    default=default_scratch,
    show_default="$SGLANG_HS_DUMP_DIR, else /dev/shm/sglang_hs",
    envvar="HS_MOVER_SRC",
    type=_ScratchPath(),
    help="Scratch: the tmpfs folder whose mover is meant.",
)
@click.option("--json", "as_json", is_flag=True, help="The state as JSON.")
def _status(src: Path, as_json: bool) -> None:
    """Say whether the mover of a scratch folder is alive, what it does, how full scratch is. Exit code 5: not alive."""
    from hs_mover.status import show_status

    show_status(src.absolute(), as_json=as_json)


_FILE = click.Path(path_type=Path)
_OUT = click.option("-o", "--output", required=True, type=_FILE, help="File to write; it appears whole or not at all.")
_FORCE = click.option("--force", is_flag=True, help="Overwrite the output.")


@_cli.command("pack")
@click.argument("file", type=_FILE)
@_OUT
@click.option("--codec", type=_CodecName("none"), default=DEFAULT_CODEC, show_default=True, help="How to store it.")
@_FORCE
def _pack(file: Path, output: Path, codec: str, force: bool) -> None:
    """Compress any one FILE without loss, as the mover does parts.

    Floats are found in parts, in files of torch.save and in safetensors; whatever else is compressed as it is.
    """
    from hs_mover.pack import pack_file

    print(printable(pack_file(file, output, codec=codec, force=force)))


@_cli.command("unpack")
@click.argument("file", type=_FILE)
@_OUT
@_FORCE
def _unpack(file: Path, output: Path, force: bool) -> None:
    """Get the original of a packed FILE or a stored part back, checked, byte for byte."""
    from hs_mover.pack import unpack_file

    print(printable(unpack_file(file, output, force=force)))


def main() -> None:
    """Entry point: errors become one line on standard error and their exit code."""
    try:
        code = _cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.info_name if context is not None and context.parent is not None else None
        see = "hs-mover --help" if command is None else f"hs-mover {command} --help"
        print(f"error: {error.format_message()} (see {see})", file=sys.stderr)
        sys.exit(error.exit_code)
    except HsError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
