"""The command line of `hs-server`. Only argparse is imported until a command runs: `--help` must be instant."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "make_parser"]

_DESCRIPTION = """\
Starts SGLang so that it writes the hidden states of hs-client's prompts to a scratch folder.
"""

_EPILOG = """\
exit codes:
  0  done                      3  refused by a check, or the capture is not armed
  2  wrong usage               4  SGLang ended, or is not running
                             130  interrupted before the server was ready

`hs-server COMMAND --help` explains each command.
"""

_LAUNCH_DESCRIPTION = """\
Starts SGLang with the capture armed and stays until it is stopped (Ctrl-C, SIGTERM, or `hs-server stop`).

The server counts as ready only when SGLang answers and every scheduler process has proved, by a marker file in
scratch, that its capture is armed. The last line printed is then `ready URL`. Otherwise the launch stops and says
why.

A boundary b is the residual stream after b decoder layers, transformers' hidden_states[b]. The state after the
final norm is always captured too. Without a choice the boundaries are 2, L//2 and L-3 of L layers.
"""

_LAUNCH_EPILOG = """\
profiles:
  default    GPU: --disable-radix-cache --disable-custom-all-reduce, NCCL settings where unset
  cpu        any x86-64 CPU: float32, torch attention, the same NCCL settings
  kimi-k2.5  default, with the boundaries 3,31,59
An argument after `--` wins over the profile's; a NCCL variable that is set already is kept. NCCL profiles of your own
are files NAME.env of lines NCCL_NAME=value in ~/.config/hs-extract/nccl.

examples:
  hs-server launch --model-path deepseek-ai/DeepSeek-V3 --boundaries 3,31,58 -- --tp-size 8
  hs-server launch --model-path ./tiny --profile cpu --port 21000 -- --chunked-prefill-size 16
  hs-server launch --model-path ./tiny --detach && hs-client run prompts.jsonl; hs-server stop
"""

_STATUS_DESCRIPTION = """\
Shows the servers that `hs-server launch` started here: whether they answer, whether their capture is armed, and
where scratch and log are. Exit code 0: running; 4: none is; 3: running, but its capture is not armed.
"""

_STOP_DESCRIPTION = """\
Stops a server that `hs-server launch` started here, in the foreground or detached, and makes sure that none of its
processes is left: first SGLang may finish its requests (20 s), then SIGTERM, then SIGKILL.
"""

_PATCH_DESCRIPTION = """\
Puts four short blocks of lines into SGLang's srt/models/deepseek_v2.py (DeepSeek-V2/V3, Kimi): the capture for `launch
--capture-mode source`. They do nothing unless SGLANG_HS_DUMP_DIR is set. All of them or none: a file in which a place
for them is missing, or is there twice, is left as it is; so is a file that was edited by hand. Old compiled files are
removed.
"""

_DOCTOR_DESCRIPTION = """\
Sends a few requests of random tokens to a running server and examines what its capture writes of them: of equal and of
different lengths, alone and all at once, one over the prefill chunk, two that share a beginning. Every launch does so
before it calls the server ready, and hs-client before a run where no pass is on record.

It finds: settings that spoil states, a hook that is silent (also on one rank, or for some batches only), rows or
boundaries missing, token ids or layers that are not those asked for, ranks or passes that disagree, slots that are
equal, constant or not finite. Other requests may run meanwhile. Exit code 3: something is wrong, and what to change.
"""

_DOCTOR_EPILOG = """\
HS_API_KEY is sent to a server that was started with --api-key.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    pass_through: tuple[str, ...] = ()
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, pass_through = arguments[:cut], tuple(arguments[cut + 1 :])
    parser = make_parser()
    options = parser.parse_args(arguments)
    if pass_through and options.command != "launch":
        parser.error(f"{options.command} takes nothing after `--`")

    from hs_formats.errors import HsError
    from hs_formats.printable import printable

    try:
        if options.command == "launch":
            return _launch(options, pass_through)
        if options.command == "patch":
            return _patch(options)
        if options.command == "doctor":
            return _doctor(options)
        from hs_server import servers

        command = servers.status if options.command == "status" else servers.stop
        return command(options.port, os.environ)
    except HsError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The parser for everything before `--`."""
    parser = _Parser(
        prog="hs-server", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=_Formatter, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_launch(commands)
    for name, description in (("status", _STATUS_DESCRIPTION), ("stop", _STOP_DESCRIPTION)):
        command = commands.add_parser(
            name,
            help="show running servers" if name == "status" else "stop a server and all of its processes",
            description=description,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        command.add_argument("--port", type=_port, metavar="N", help="the server's port (default: whichever runs)")
    _add_doctor(commands)
    _add_patch(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in the form of all other errors."""

    def error(self, message: str) -> NoReturn:
        hint = f"see {self.prog} --help"
        if message.startswith("unrecognized arguments"):
            hint = "SGLang's own arguments go after the `--` of launch; see hs-server COMMAND --help"
        self.exit(2, f"error: {message}\n  {hint}\n")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the texts as written and the width fixed, so that help looks the same everywhere."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)


def _add_launch(commands: argparse._SubParsersAction[_Parser]) -> None:
    launch = commands.add_parser(
        "launch",
        help="start SGLang with the capture armed",
        description=_LAUNCH_DESCRIPTION,
        epilog=_LAUNCH_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
        usage="hs-server launch --model-path M [options] [-- SGLANG ARGUMENTS]",
    )
    launch.add_argument("--model-path", required=True, metavar="M", help="model folder or name, as SGLang takes it")
    launch.add_argument("--profile", default="default", metavar="NAME", help="default, cpu or kimi-k2.5; see below")
    launch.add_argument(
        "--nccl-profile",
        default="default",
        metavar="NAME|FILE",
        help="NCCL variables to set where unset: default, none, a file, or one of yours; see below",
    )
    launch.add_argument("--share-gpus", action="store_true", help="take GPUs that others use")
    launch.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    launch.add_argument(
        "--port", type=_port, default=8000, metavar="N", help="port to listen on (default: %(default)s)"
    )
    launch.add_argument("--log", metavar="FILE", help="SGLang's output (default: in the state folder, by port)")
    launch.add_argument("--detach", action="store_true", help="return once the server is ready and leave it running")
    launch.add_argument(
        "--startup-timeout",
        type=_seconds,
        default=1800.0,
        metavar="S",
        help="give up when it is not ready after S seconds (default: %(default).0f)",
    )
    launch.add_argument("--dry-run", action="store_true", help="print environment and command line, and start nothing")
    launch.add_argument(
        "--assume-sglang-version", metavar="V", help="with --dry-run: plan for this version, whatever is installed"
    )
    capture = launch.add_argument_group("capture")
    capture.add_argument(
        "--dump-dir", metavar="D", help="scratch folder (default: $SGLANG_HS_DUMP_DIR, else /dev/shm/sglang_hs)"
    )
    layers = capture.add_mutually_exclusive_group()
    layers.add_argument("--boundaries", metavar="B,B,..", help="boundaries to capture, such as 3,31,59")
    layers.add_argument("--eagle-ids", metavar="I,I,..", help="the same as ids of draft configs, one less: 2,30,58")
    capture.add_argument(
        "--writers",
        choices=("first", "spread", "all"),
        default="first",
        help="which TP ranks write: the first, all of them a share, or all of them everything (default: %(default)s)",
    )
    capture.add_argument(
        "--capture-mode",
        choices=("plugin", "source"),
        default="plugin",
        help="hooks, with no file of SGLang changed, or the lines of `hs-server patch` (default: %(default)s)",
    )
    capture.add_argument(
        "--skip-doctor", action="store_true", help="call it ready without examining what the capture writes"
    )
    capture.add_argument("--no-capture", action="store_true", help="serve only: the capture stays dormant")


def _add_patch(commands: argparse._SubParsersAction[_Parser]) -> None:
    patch = commands.add_parser(
        "patch",
        help="put the capture into SGLang's deepseek_v2.py",
        description=_PATCH_DESCRIPTION,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    patch.add_argument("--sglang", metavar="DIR", help="folder of the package sglang (default: the installed one)")
    what = patch.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="change nothing; exit code 3 unless it is patched and intact"
    )
    what.add_argument(
        "--revert", action="store_true", help="take the patch out: the file is then what it was, byte by byte"
    )


def _patch(options: argparse.Namespace) -> int:
    from pathlib import Path

    from hs_server.patch.command import run_patch

    folder = Path(options.sglang) if options.sglang else None
    return run_patch(folder, check=options.check, revert=options.revert)


def _add_doctor(commands: argparse._SubParsersAction[_Parser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="examine what the capture of a running server writes",
        description=_DOCTOR_DESCRIPTION,
        epilog=_DOCTOR_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    doctor.add_argument("--server", metavar="URL", default="", help="the server (default: the one launched here)")
    doctor.add_argument("--dump-dir", metavar="D", help="its scratch folder (default: as launched, else as for launch)")
    doctor.add_argument(
        "--answer-timeout",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="wait for an answer (default: %(default).0f)",
    )
    doctor.add_argument(
        "--part-timeout", type=_seconds, default=15.0, metavar="S", help="and for its parts (default: %(default).0f)"
    )


def _doctor(options: argparse.Namespace) -> int:
    from pathlib import Path

    from hs_server.doctor.command import DoctorOptions, doctor
    from hs_server.doctor.session import Times

    times = Times(answer_s=options.answer_timeout, parts_s=options.part_timeout)
    folder = Path(options.dump_dir) if options.dump_dir else None
    return doctor(DoctorOptions(server=options.server, dump_dir=folder, times=times), os.environ)


def _launch(options: argparse.Namespace, pass_through: tuple[str, ...]) -> int:
    from pathlib import Path

    from hs_formats.control import default_scratch
    from hs_formats.errors import UsageError
    from hs_server.launch import LaunchOptions, dry_run, launch
    from hs_server.plan import CaptureRequest, LaunchRequest

    capture = None
    if not options.no_capture:
        folder = Path(options.dump_dir) if options.dump_dir else default_scratch(os.environ)
        capture = CaptureRequest(
            dump_dir=folder.absolute(),
            boundaries=_ids("--boundaries", options.boundaries),
            eagle_ids=_ids("--eagle-ids", options.eagle_ids),
            writers=options.writers,
            mode=options.capture_mode,
        )
    elif (
        options.boundaries
        or options.eagle_ids
        or options.dump_dir
        or (options.writers, options.capture_mode) != ("first", "plugin")
    ):
        raise UsageError(
            "--no-capture cannot go with --dump-dir, --boundaries, --eagle-ids, --writers or --capture-mode"
        )
    request = LaunchRequest(
        model_path=options.model_path,
        capture=capture,
        profile=options.profile,
        nccl_profile=options.nccl_profile,
        host=options.host,
        port=options.port,
        pass_through=pass_through,
    )
    if options.dry_run:
        return dry_run(request, os.environ, assume_version=options.assume_sglang_version)
    if options.assume_sglang_version:
        raise UsageError("--assume-sglang-version goes with --dry-run only")
    log = Path(options.log) if options.log else None
    how = LaunchOptions(
        log=log,
        detach=options.detach,
        startup_timeout_s=options.startup_timeout,
        doctor=not options.skip_doctor,
        share_gpus=options.share_gpus,
    )
    return launch(request, how, os.environ)


def _ids(option: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    from hs_formats.boundaries import parse_ids
    from hs_formats.errors import FormatError, UsageError

    try:
        return parse_ids(text)
    except FormatError as error:
        raise UsageError(f"{option}: {error}") from None


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds > 0:
        return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")


if __name__ == "__main__":
    sys.exit(main())
