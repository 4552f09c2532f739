"""Servers for benchmarks, each started by `hs-server launch` as any user would start it.

The plugin is in one of three states. *none*: SGLang is told not to load it (SGLANG_PLUGINS). *dormant*: it is loaded
and finds its variable unset. *capture*: armed. *none* and *dormant* are told apart so that "dormant costs nothing" is
measured and not claimed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from benchmarks import machine, witness
from benchmarks.checkout import ROOT, server_path, use_test_support
from benchmarks.load import Vocabulary
from hs_formats.control import CaptureStatistics, ControlFolder, Marker
from hs_formats.errors import PreflightError, ServerLost, UsageError
from hs_server.preflight import check_port

__all__ = ["DUMMIES", "Plugin", "Server", "Target", "add_target_arguments", "target_of"]

Plugin = Literal["none", "dormant", "capture"]

DUMMIES = {name: ROOT / "benchmarks" / "throughput" / "configs" / name for name in ("llama8b", "dsv2lite")}
"""Configs of known models, for machines without weights; SGLang draws the weights."""

_CAPTURE_PLUGIN = "hs_capture"
_OF_BENCHMARKS = ("hs_bench_weights", "hs_bench_witness")  # by checkout.server_path; each has a variable of its own
_DUMMY_ARGUMENTS = ("--load-format", "dummy", "--skip-tokenizer-init")
_STATISTICS_AGE_S = 1.5
_GENTLE_STOP_S = 1.0
_PORT_S = 20.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is served, and how: the same for every arm of a run."""

    model_path: str
    label: str
    profile: str
    tp: int
    port: int
    vocabulary: Vocabulary
    context_length: int
    server_args: tuple[str, ...]
    work: Path
    scratch: Path
    startup_timeout_s: float = 600.0

    @property
    def cpu(self) -> bool:
        """Served on the CPU: no graphs, and times mean nothing."""
        return self.profile == "cpu"


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name model, server arguments, port and folders."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="PATH", help="model folder, as hs-server takes it")
    which.add_argument("--dummy", choices=sorted(DUMMIES), help="a known config with weights drawn by SGLang")
    parser.add_argument("--profile", help="profile of hs-server (default: cpu where there is no GPU)")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel size")
    parser.add_argument("--server-args", default="", metavar='"…"', help="further arguments of SGLang, in one string")
    parser.add_argument("--port", type=int, default=24000, metavar="N", help="port of the servers")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="scratch (default: a new folder in /dev/shm)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="logs and state (default: a new folder in /tmp)")
    parser.add_argument("--startup-timeout", type=float, default=600.0, metavar="S", help="for each server")


def target_of(options: argparse.Namespace) -> Target:
    """The target that the options name; without a model the short form serves a tiny one.

    Raises:
        UsageError: there is no model, or its config cannot be used.
    """
    extra: tuple[str, ...] = ()
    if options.dummy:
        model, label, extra = DUMMIES[options.dummy], options.dummy, _DUMMY_ARGUMENTS
    elif options.model:
        model, label = Path(options.model), Path(options.model).name
    elif options.quick:
        use_test_support()
        from tiny_models import tiny_model

        model, label = tiny_model("tiny-llama"), "tiny-llama"
    else:
        raise UsageError("name a model with --model PATH or --dummy NAME")
    try:
        config: dict[str, Any] = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{model}/config.json cannot be read ({error}); give a local folder") from None
    text = config.get("text_config") or config
    tp = ("--tp-size", str(options.tp)) if options.tp > 1 else ()
    work = options.work or Path(tempfile.mkdtemp(prefix="hs-bench-"))
    return Target(
        model_path=str(model),
        label=label if options.tp == 1 else f"{label}-tp{options.tp}",
        profile=options.profile or ("default" if machine.gpus() else "cpu"),
        tp=options.tp,
        port=options.port,
        vocabulary=Vocabulary(int(text["vocab_size"])),
        context_length=int(text.get("max_position_embeddings", 4096)),
        server_args=(*extra, *tp, *shlex.split(options.server_args)),
        work=work,
        scratch=options.scratch or Path(f"/dev/shm/hs-bench-{os.getpid()}"),
        startup_timeout_s=options.startup_timeout,
    )


def _without_capture(environment: Mapping[str, str]) -> str:
    """SGLANG_PLUGINS that leaves out the capture and keeps every other plugin."""
    given = [name.strip() for name in environment.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    names = given or [point.name for point in importlib.metadata.entry_points(group="sglang.srt.plugins")]
    return ",".join(dict.fromkeys(name for name in (*names, *_OF_BENCHMARKS) if name != _CAPTURE_PLUGIN))


def _wait_for_port(port: int) -> None:
    """The threads of a server that was killed may hold its port for a moment when it is a zombie already."""
    end_s = time.monotonic() + _PORT_S
    while time.monotonic() < end_s:
        try:
            check_port("127.0.0.1", port)
        except PreflightError:
            time.sleep(0.2)
        else:
            return


class Server:
    """A server from start to stop; a context manager.

    Args:
        target: what is served.
        name: of the arm; names log and scratch.
        plugin: state of the capture plugin.
        arguments: SGLang arguments of this arm.
        options: `hs-server launch` options of this arm, such as ``--writers``.
        environment: variables of this arm.
        scratch: folder, `<target's scratch>/<name>` when missing.

    Raises:
        ServerLost: it did not become ready; the text ends with the launcher's words.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str,
        plugin: Plugin,
        arguments: tuple[str, ...] = (),
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        scratch: Path | None = None,
    ) -> None:
        self.target = target
        self.name = name
        self.url = f"http://127.0.0.1:{target.port}"
        self.scratch = scratch or target.scratch / name
        self.control = ControlFolder(self.scratch)
        self.log = target.work / f"{name}.log"
        self.start_s = 0.0
        self._plugin = plugin
        self._witness = target.work / "witness" / name
        capture = ("--dump-dir", str(self.scratch)) if plugin == "capture" else ("--no-capture",)
        self._argv = [
            *(sys.executable, "-m", "hs_server.cli", "launch", "--model-path", target.model_path),
            *("--profile", target.profile, "--port", str(target.port), "--log", str(self.log)),
            *("--startup-timeout", str(target.startup_timeout_s), *capture, *options),
            *("--", *target.server_args, *arguments),
        ]
        outside = {**os.environ, **(environment or {})}
        self._environment = outside | {
            "PYTHONPATH": server_path(target.work / "path", outside),
            "HS_STATE_DIR": str(target.work / "state"),
            witness.VARIABLE: str(self._witness),
        }
        if plugin == "none":
            self._environment["SGLANG_PLUGINS"] = _without_capture(self._environment)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._witness.mkdir(parents=True, exist_ok=True)
        for old in self._witness.iterdir():
            old.unlink()
        if self._plugin == "capture":
            self.scratch.parent.mkdir(parents=True, exist_ok=True)
        said = self.target.work / f"{self.name}.launch.log"
        _wait_for_port(self.target.port)
        started = time.monotonic()
        with said.open("wb") as output:
            self._process = subprocess.Popen(
                self._argv, env=self._environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        try:
            while f"ready {self.url}".encode() not in said.read_bytes():
                if self._process.poll() is not None:
                    text = said.read_text(encoding="utf-8", errors="replace")
                    raise ServerLost(f"the server of arm {self.name} did not start: …{text[-1500:]}")
                time.sleep(0.1)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - started
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server, quickly: what was to be written must be there already."""
        process = self._process
        if process is None:
            return
        self._process = None
        for patience_s in (_GENTLE_STOP_S, _STOP_S):  # the second signal tells the launcher to be quick
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is None:
            process.kill()
            process.wait()

    def remove_scratch(self) -> None:
        """Free what this server wrote, and the folder above where it is empty."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.scratch.parent.rmdir()

    def markers(self) -> list[Marker]:
        """The living scheduler processes, by rank."""
        return sorted(self.control.live_markers(port=self.target.port), key=lambda marker: marker.rank)

    def testimony(self) -> list[dict[str, Any]]:
        """What each scheduler process says of its own functions; see `benchmarks.witness`."""
        return witness.ask(self._witness, processes=self.target.tp)

    def statistics(self) -> list[CaptureStatistics]:
        """Counters of all ranks, after a wait that makes them cover everything that happened before the call."""
        time.sleep(_STATISTICS_AGE_S)
        found = [self.control.read_statistics(marker.pid, marker.rank) for marker in self.markers()]
        return [item for item in found if item is not None]
