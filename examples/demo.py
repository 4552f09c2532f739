"""The main job for real on this machine: prompts in, verified hidden states out.

Starts SGLang on the CPU with SmolLM2-135M-Instruct and the capture armed, starts the mover, runs the client over
`examples/prompts.jsonl`, and compares every stored state with transformers. The dataset stays in `demo-out`.
`make demo` runs it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smollm import MODEL_NAME, smollm_folder

from hs_formats.control import DEFAULT_SCRATCH, ControlFolder, now_s

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PROMPTS = ROOT / "examples" / "prompts.jsonl"
OUT = ROOT / "demo-out"
DATASET = OUT / PROMPTS.stem

DEFAULT_PORT = 8000
CHUNK_TOKENS = 256
TOLERANCE = 1e-3

BOLD, DIM, RESET = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def main() -> int:
    """Run the demo; returns the exit code."""
    started = time.monotonic()
    step("the model")
    model = smollm_folder(say=lambda text: print(f"  {text}", flush=True))
    print(f"  {MODEL_NAME} in {shown(model)}")
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    place = choose_place()
    with server(model, place), mover(place):
        step("the client: one request a prompt, each answer tied to its part files")
        if run("hs-client", "run", shown(PROMPTS), *place.client_options) != 0:
            print(f"\nthe run failed; the server's log is {shown(OUT / 'server.log')}", file=sys.stderr)
            return 1
        left = [name for name in os.listdir(place.scratch) if name.endswith((".pt", ".tmp"))]
    if left:
        print(f"\n{len(left)} files are left in scratch: {left[:3]}", file=sys.stderr)
        return 1
    step("every state against transformers")
    worst = compare(model)
    print(f"\n{DIM}{time.monotonic() - started:.0f} s in all{RESET}")
    python = shown(Path(sys.executable))
    print(f"\nLoad the data with {BOLD}{python}{RESET} ({shown(DATASET)} stays until the next demo):\n")
    print(LOADING.format(dataset=shown(DATASET)))
    return 0 if worst <= TOLERANCE else 1


LOADING = """from hs_formats.reader import HiddenStateDataset
data = HiddenStateDataset("{dataset}")
sample = data["demo-04"]
print(sample.input_ids.shape, sample.loss_mask.sum())  # tokens, of which to train on
print(sample.hidden_states.shape)                      # tokens, boundaries + last state, hidden size
"""


def step(title: str) -> None:
    """Headline of a step."""
    print(f"\n{BOLD}{title}{RESET}", flush=True)


def shown(path: Path) -> str:
    """A path as a user in the repository would type it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def run(name: str, *arguments: str) -> int:
    """Print and run one of our commands."""
    print(f"{DIM}$ {name} {' '.join(arguments)}{RESET}", flush=True)
    with subprocess.Popen([BIN / name, *arguments], cwd=ROOT) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C reached it too, and it cleans up
            raise


@dataclass(frozen=True, slots=True)
class Place:
    """Port and scratch: the defaults where they are free, so that the commands need no option; else others."""

    port: int
    scratch: Path

    @property
    def server_options(self) -> list[str]:
        """For `hs-server launch`."""
        port = [] if self.port == DEFAULT_PORT else ["--port", str(self.port)]
        return port if self.scratch == DEFAULT_SCRATCH else [*port, "--dump-dir", str(self.scratch)]

    @property
    def client_options(self) -> list[str]:
        """For `hs-client run`."""
        server = [] if self.port == DEFAULT_PORT else ["--server", f"http://127.0.0.1:{self.port}"]
        return server if self.scratch == DEFAULT_SCRATCH else [*server, "--scratch", str(self.scratch)]


def choose_place() -> Place:
    """The default port and scratch unless somebody uses them."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
            port = DEFAULT_PORT
        except OSError:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
    control = ControlFolder(DEFAULT_SCRATCH)
    state = control.read_mover()
    used = bool(control.live_markers()) or (state is not None and state.alive(now_s()))
    mine = not DEFAULT_SCRATCH.exists() or DEFAULT_SCRATCH.stat().st_uid == os.geteuid()
    scratch = DEFAULT_SCRATCH if mine and not used else DEFAULT_SCRATCH.with_name(f"sglang_hs_demo_{os.getpid()}")
    return Place(port, scratch)


@contextlib.contextmanager
def server(model: Path, place: Place) -> Iterator[None]:
    """SGLang with the capture armed, for the length of the block."""
    step("the server: an unmodified SGLang with the capture plugin")
    arguments = ["--model-path", shown(model), "--profile", "cpu", *place.server_options]
    arguments += ["--log", shown(OUT / "server.log"), "--detach", "--", "--chunked-prefill-size", str(CHUNK_TOKENS)]
    if run("hs-server", "launch", *arguments) != 0:
        raise SystemExit(f"the server did not start; its log is {shown(OUT / 'server.log')}")
    try:
        yield
    finally:
        step("stop")
        run("hs-server", "stop", "--port", str(place.port))  # others may run as well
        if place.scratch != DEFAULT_SCRATCH:
            shutil.rmtree(place.scratch, ignore_errors=True)


@contextlib.contextmanager
def mover(place: Place) -> Iterator[None]:
    """The mover, for the length of the block."""
    step("the mover: part files out of scratch, compressed, into the dataset")
    arguments = ["--src", str(place.scratch), "--dst", shown(OUT)]
    print(f"{DIM}$ hs-mover {' '.join(arguments)} &{RESET}", flush=True)
    with (OUT / "mover.log").open("wb") as log:
        # In a group of its own: Ctrl-C is for us, and the mover is stopped below.
        process = subprocess.Popen([BIN / "hs-mover", *arguments], cwd=ROOT, stdout=log, stderr=log, process_group=0)
    try:
        wait_for_mover(place, process)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=60) != 0:
            raise SystemExit(f"the mover failed; its log is {shown(OUT / 'mover.log')}")


def wait_for_mover(place: Place, process: subprocess.Popen[bytes]) -> None:
    """Return at the mover's first heartbeat."""
    for _ in range(300):
        state = ControlFolder(place.scratch).read_mover()
        if state is not None and state.pid == process.pid:
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the mover did not start; its log is {shown(OUT / 'mover.log')}")


def compare(model: Path) -> float:
    """Largest difference to transformers over all samples, relative to the RMS of the state's slot."""
    # Threads that spin while they wait make a busy machine ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from hs_server.cpu_profile import torchvision_schemas

    torchvision_schemas.install()
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from hs_formats.reader import HiddenStateDataset

    logging.disable_progress_bar()
    oracle = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).eval()
    data = HiddenStateDataset(DATASET)
    boundaries = data.info.boundaries
    slots = len(boundaries) + 1
    worst, square, tokens = torch.zeros(slots), torch.zeros(slots), 0
    for sample in data:
        with torch.no_grad():
            out = oracle.model(sample.input_ids[None], output_hidden_states=True)
        want = torch.stack([*(out.hidden_states[b][0] for b in boundaries), out.last_hidden_state[0]], dim=1)
        worst = torch.maximum(worst, (sample.hidden_states - want).abs().amax(dim=(0, 2)))
        square += want.square().mean(dim=2).sum(dim=0)
        tokens += len(sample.input_ids)
    rms = (square / tokens).sqrt()
    names = [*(f"boundary {b}" for b in boundaries), "last state"]
    for name, difference, scale in zip(names, worst.tolist(), rms.tolist(), strict=True):
        print(f"  {name:12} RMS {scale:9.3f}   largest difference {difference:.2e} = {difference / scale:.1e} of it")
    relative = float((worst / rms).max())
    verdict = "within" if relative <= TOLERANCE else "OUTSIDE"
    print(
        f"  {len(data)} samples, {tokens:,} tokens: {BOLD}{relative:.1e}{RESET} of the RMS, {verdict} {TOLERANCE:.0e}"
    )
    return relative


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted: all that was started is stopped", file=sys.stderr)
        sys.exit(130)
