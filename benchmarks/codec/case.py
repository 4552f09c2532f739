"""Size and speed of the codecs beside general compressors and libraries that know floats."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from benchmarks.codec.report import mean_ratio, plot, table
from benchmarks.results import ResultFile
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "How small do the codecs make real hidden states, and how fast, beside other compressors?"

_SAMPLES = ROOT / "tests" / "samples"
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_LEAST = {"default": 1.48, "fast": 1.44}


class NotMeasured(HsError):
    """the measurement failed: {reason}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each encodes and decodes (15, quick 2)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps the compared libraries (default: thrown away)")
    parser.add_argument(
        "--no-install", action="store_true", help="compare with what is installed already, as --quick does"
    )


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    rounds = options.rounds or (2 if options.quick else 15)
    shape = (64, 4, 512) if options.quick else (512, 4, 4096)
    file = ResultFile("codec", options.out, quick=options.quick)
    with tempfile.TemporaryDirectory(prefix="hs-bench-") as thrown_away:
        python = (
            Path(sys.executable)
            if options.no_install or options.quick
            else _environment(options.work or Path(thrown_away))
        )
        found = _measured(python, rounds, shape)
    for name, why in found["missing"].items():
        sys.stderr.write(f"SKIPPED: {name} is not compared: {why}\n")
    problems = list(found.pop("problems"))
    for name, least in _LEAST.items():
        ratio = mean_ratio(found["candidates"][name])
        if ratio < least:
            problems.append(f"{name} makes {ratio:.3f} to 1 of the samples, less than {least}")
    parameters = {"rounds": rounds, "shape": shape, "samples": sorted(path.name for path in _SAMPLES.glob("*_bf*.pt"))}
    body = {"parameters": parameters, "times_mean_something": not options.quick, **found}
    return file.save(body, complete=True, problems=problems)


def _measured(python: Path, rounds: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    command = [str(python), "-m", "benchmarks.codec.measure", "--samples", str(_SAMPLES), "--rounds", str(rounds)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "BLOSC_NTHREADS", "NUMEXPR_NUM_THREADS"), "1")
    path = os.pathsep.join([str(ROOT), str(ROOT / "formats")])
    done = subprocess.run(
        [*command, "--shape", *map(str, shape)],
        env={**os.environ, **threads, "PYTHONPATH": path}, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NotMeasured(reason=f"exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _environment(work: Path) -> Path:
    """The interpreter of an environment with the compared libraries, or this one where they cannot be installed."""
    folder = work / "codec-libraries"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        inner = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        # What is installed here is seen there too: torch, which zipnn wants, need not be installed again.
        (Path(inner.stdout.strip()) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(_REQUIREMENTS)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        sys.stderr.write(f"SKIPPED: the compared libraries cannot all be installed: {reason}\n")
    return python
