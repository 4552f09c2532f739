"""On a machine with a GPU: source mode does not run with prefill graphs, however they were turned on.

The launcher refuses to turn them on. Here SGLang is started beside it, patched and armed, with its prefill graphs as
they come by default: the capture must refuse to start. Where its check is taken out, the doctor has to find them on the
running server. While that runs, a launch has to say who has the GPU.

    PYTHONPATH=.:tests/support python -m pytest -c /dev/null --rootdir . -s tests/gpu

The model is a config of DeepSeek-V2-Lite with drawn weights. Nothing but SGLang's own environment is needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
FAULTS = Path(__file__).parents[1] / "support" / "capture_faults"
START_S = 400


@dataclass(frozen=True)
class Patched:
    """A patched view of SGLang."""

    environment: dict[str, str]
    work: Path

    @property
    def scratch(self) -> Path:
        """Of the servers here."""
        return Path(f"/dev/shm/hs-forced-{os.getpid()}")

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

    @contextmanager
    def sglang(self, log: Path, *, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """SGLang started beside the launcher, armed for source mode, its prefill graphs as they are by default."""
        environment = {**self.environment, env.DUMP_DIR: str(self.scratch), env.MODE: "source", env.NONCE: "f0" * 8}
        if fault:
            environment["HS_TEST_FAULT"] = str(self.work / "fault")
            environment["PYTHONPATH"] = f"{FAULTS}{os.pathsep}{environment['PYTHONPATH']}"
            (self.work / "fault").write_text(fault)
        argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", MODEL, "--port", str(PORT), *DUMMY]
        argv += ["--disable-radix-cache", "--cuda-graph-max-bs-decode", "8", "--cuda-graph-max-bs-prefill", "512"]
        with log.open("wb") as output:
            process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(self.scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Patched:
    work = tmp_path_factory.mktemp("forced")
    environment = {**os.environ, **patched_environment(work), "HS_STATE_DIR": str(work / "state"), REALISTIC: "1"}
    environment["PYTHONPATH"] = server_path(work / "path", environment)
    return Patched(environment, work)


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


def test_the_capture_refuses_to_start_with_prefill_graphs(patched: Patched) -> None:
    log = patched.work / "refused.log"
    end_s = time.monotonic() + START_S
    with patched.sglang(log) as process:
        # SGLang's first process may outlive its scheduler for a while.
        while process.poll() is None and "CaptureRefused: " not in log.read_text() and time.monotonic() < end_s:
            time.sleep(0.5)
    refusals = {line for line in log.read_text(errors="replace").splitlines() if "CaptureRefused: " in line}
    print(f"\nSGLang's log: {refusals}")
    (line,) = refusals
    assert "cuda_graph_config.prefill.backend=tc_piecewise: source mode was proved right with every" in line
    assert "--disable-prefill-cuda-graph" in line


def test_the_doctor_finds_prefill_graphs_and_a_gpu_that_is_taken_is_named_with_its_holder(patched: Patched) -> None:
    log = patched.work / "unchecked.log"
    with patched.sglang(log, fault="unchecked settings") as process:
        wait_until_healthy(process, log)
        code, said = patched.hs_server("doctor", "--server", URL, "--dump-dir", str(patched.scratch))
        assert code == 3
        assert "cuda_graph_config.prefill.backend=tc_piecewise: source mode was proved right" in said
        assert "Traceback" not in said

        code, said = patched.hs_server(*launch(PORT + 2))
        assert code == 3
        assert "GPU 0" in said
        assert "by pid " in said
        assert "--share-gpus" in said
