"""On a machine with a GPU: prefill graphs that swallow what source mode captures do not go unnoticed.

The launcher refuses to turn them on. Here SGLang is started beside it, patched and armed, with its prefill graphs as
they come by default; then the doctor has to see that states are missing. While it runs, a launch has to say who has
the GPU.

    PYTHONPATH=.:tests/support python -m pytest -c /dev/null --rootdir . -s tests/gpu

The model is a config of DeepSeek-V2-Lite with drawn weights. Nothing but SGLang's own environment is needed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from benchmarks.checkout import server_path
from benchmarks.patched import patched_environment
from benchmarks.realistic_weights import VARIABLE as REALISTIC
from benchmarks.serving import DUMMIES

from hs_server import env

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs are what this is about"),
]

PORT = 24190
URL = f"http://127.0.0.1:{PORT}"
MODEL = str(DUMMIES["dsv2lite"])
DUMMY = (
    *("--load-format", "dummy", "--skip-tokenizer-init"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none"),
)
START_S = 400


@dataclass(frozen=True)
class Patched:
    """A patched view of SGLang, and the server that runs from it with its prefill graphs on."""

    environment: dict[str, str]
    scratch: Path
    log: Path

    def hs_server(self, *arguments: str) -> tuple[int, str]:
        """Exit code and all output of `hs-server`; also shown with ``pytest -s``."""
        done = subprocess.run(
            [sys.executable, "-m", "hs_server.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        print(f"\n$ hs-server {' '.join(arguments)}\n{done.stdout}{done.stderr}exit code {done.returncode}")
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patched]:
    work = tmp_path_factory.mktemp("forced")
    scratch, log = Path(f"/dev/shm/hs-forced-{os.getpid()}"), work / "sglang.log"
    environment = {**os.environ, **patched_environment(work), "HS_STATE_DIR": str(work / "state"), REALISTIC: "1"}
    environment["PYTHONPATH"] = server_path(work / "path", environment)
    server = Patched(environment, scratch, log)
    armed = {**environment, env.DUMP_DIR: str(scratch), env.MODE: "source", env.NONCE: "f0" * 8}
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", MODEL, "--port", str(PORT), *DUMMY]
    argv += ["--disable-radix-cache", "--cuda-graph-max-bs-decode", "8"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=armed, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until_healthy(process, log)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(["rm", "-rf", str(scratch)], check=True)


def wait_until_healthy(process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"{URL}/health", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    pytest.fail(f"not healthy after {START_S} s: {log.read_text(errors='replace')[-3000:]}")


def launch(port: int, *sglang: str) -> list[str]:
    options = ["--model-path", MODEL, "--port", str(port), "--capture-mode", "source"]
    return ["launch", *options, "--dump-dir", f"/dev/shm/hs-forced-{port}", "--", *DUMMY, *sglang]


def test_the_launcher_refuses_prefill_graphs_in_source_mode(patched: Patched) -> None:
    code, said = patched.hs_server(*launch(PORT + 1, "--cuda-graph-backend-prefill", "tc_piecewise"))
    assert code == 2
    assert "may turn prefill graphs on, and source mode needs them off" in said


def test_the_doctor_sees_that_prefill_graphs_swallow_the_capture(patched: Patched) -> None:
    code, said = patched.hs_server("doctor", "--server", URL, "--dump-dir", str(patched.scratch))
    assert code == 3
    assert "silent hook" in said
    assert "turn prefill graphs off" in said
    assert "Traceback" not in said


def test_a_gpu_that_is_taken_is_named_with_its_holder(patched: Patched) -> None:
    code, said = patched.hs_server(*launch(PORT + 2))
    assert code == 3
    assert "GPU 0" in said
    assert "--share-gpus" in said
