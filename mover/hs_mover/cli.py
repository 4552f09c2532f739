"""The command line of `hs-mover`. Everything heavy is imported after the arguments are known to be good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hs_formats.errors import HsError, UsageError

__all__ = ["main"]

_EPILOG = """
\b
Examples
  hs-mover --src /dev/shm/sglang_hs --dst /data
  hs-mover --src /dev/shm/sglang_hs --dst /data --limit-rate 200M
  hs-mover --src /dev/shm/a --src /dev/shm/b --dst /data --once
  hs-mover status --src /dev/shm/sglang_hs

\b
Sizes are bytes, or like 64M, 1GiB (both in 1024s) and 500MB (in 1000s).
Each option can be given in the environment too: HS_MOVER_SRC, HS_MOVER_DST, HS_MOVER_HIGH ...

\b
Exit codes
  0  stopped as asked, or with --once everything was moved
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

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        del param, ctx
        return f"[{'|'.join(_codecs())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _codecs():
            self.fail(f"{value!r} is not one of {', '.join(_codecs())}", param, ctx)
        return str(value)


def _codecs() -> list[str]:
    from hs_formats.stored import CODECS

    return list(CODECS)


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
    type=click.Path(path_type=Path, file_okay=False),
    help="Scratch: the tmpfs folder that the server writes to. Made when missing. May be given several times.",
)
@click.option(
    "--dst",
    type=click.Path(path_type=Path, file_okay=False),
    help="Destination: datasets are folders below it. Made when missing.",
)
@click.option(
    "--codec", type=_CodecName(), default="zstd", show_default=True, help="How parts are stored; none only moves."
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
    "--threads", type=click.IntRange(1, 256), help="Worker threads. Default: the cores, at least 2, at most 16."
)
@click.option("--once", is_flag=True, help="Move what is there, then exit.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--verbose", is_flag=True, help="A log line for each part.")
@click.version_option(package_name="hs-extract", prog_name="hs-mover")
@click.pass_context
def _cli(
    ctx: click.Context,
    sources: tuple[Path, ...],
    dst: Path | None,
    codec: str,
    high: float,
    low: float,
    reserve: int | None,
    limit_rate: int | None,
    threads: int | None,
    once: bool,
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
    from hs_mover.config import MoverConfig, default_threads
    from hs_mover.daemon import run_mover
    from hs_mover.logs import set_up_logging

    config = MoverConfig(
        sources=tuple(path.absolute() for path in sources),
        dst=dst.absolute(),
        codec=codec,
        high=high,
        low=low,
        reserve_bytes=reserve,
        limit_bytes_per_s=limit_rate,
        once=once,
        threads=threads or default_threads(),
    )
    set_up_logging("json" if log_format == "json" else "text", verbose=verbose)
    run_mover(config)


@_cli.command("status")
@click.option(
    "--src",
    required=True,
    envvar="HS_MOVER_SRC",
    type=click.Path(path_type=Path, file_okay=False),
    help="Scratch: the tmpfs folder whose mover is meant.",
)
@click.option("--json", "as_json", is_flag=True, help="The state as JSON.")
def _status(src: Path, as_json: bool) -> None:
    """Say whether the mover of a scratch folder is alive, what it does, how full scratch is. Exit code 5: not alive."""
    from hs_mover.status import show_status

    show_status(src.absolute(), as_json=as_json)


def main() -> None:
    """Entry point: errors become one line on standard error and their exit code."""
    try:
        code = _cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        print(f"error: {error.format_message()} (see hs-mover --help)", file=sys.stderr)
        sys.exit(error.exit_code)
    except HsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
