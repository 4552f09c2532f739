"""What a user installs: wheel and sdist, in a fresh environment that holds the base dependencies and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hs_client", "hs_formats", "hs_mover", "hs_server")
SCRIPTS = ("hs-client", "hs-mover", "hs-server")
# What SGLang's own environment brings. Nothing else may be needed beyond the base dependencies.
NEED_TORCH = (
    *("hs_client.export.", "hs_client.verify.recompute"),
    *("hs_formats.collate", "hs_formats.reader", "hs_formats.streaming", "hs_server.capture."),
)
NEED_JINJA = {"hs_client.message_marks", "hs_client.templates"}
EXPORT_PACKAGES = {"pyarrow", "safetensors", "torch"}
LEFT_OUT = ("hs_server.cpu_profile.on_pythonpath",)  # acts when imported, by design

CONSUMER = """\
from pathlib import Path

from hs_formats.boundaries import resolve_boundaries
from hs_formats.dataset import DatasetPaths
from hs_formats.index import DatasetIndex, IndexedSample
from hs_formats.names import PartName
from hs_formats.reader import HiddenStateDataset, Sample

boundaries: tuple[int, ...] = resolve_boundaries(8, boundaries=[1, 3])
part: PartName | None = PartName.try_parse("x")


def longest(folder: Path) -> IndexedSample:
    return max(DatasetIndex.load(DatasetPaths(folder)).samples.values(), key=lambda sample: sample.n)


def first(folder: Path) -> Sample:
    data = HiddenStateDataset(folder)
    return data[data.sample_ids[0]]
"""
MISUSE = """\
from hs_formats.boundaries import resolve_boundaries

wrong: str = resolve_boundaries(8)
"""
IMPORT_ALL = """\
import importlib, json, pkgutil, sys
failed = {}
for package in sys.argv[1].split(","):
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, package + "."):
        if module.name.startswith(tuple(sys.argv[2].split(","))) or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed[module.name] = error.name
print(json.dumps(failed))
"""


@dataclass(frozen=True)
class Built:
    """Wheel, sdist, and the bin folder of the environment with the wheel in it."""

    wheel: Path
    sdist: Path
    bin: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command of the fresh environment, far away from the checkout."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SGLANG", "HS_"))}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]], capture_output=True, text=True, cwd=cwd, env=own, check=False
        )


def build(source: Path, target: Path, *kinds: str) -> list[Path]:
    """Run the build back end, as pip and `python -m build` do after they have set up its environment."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-d",
            str(target),
            *(option for kind in kinds for option in ("-t", kind)),
        ],
        cwd=source,
        check=True,
        capture_output=True,
    )
    return sorted(target.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("packaging")
    wheel, sdist = build(ROOT, folder / "dist", "sdist", "wheel")
    assert (wheel.suffix, sdist.name[-7:]) == (".whl", ".tar.gz")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Built(wheel, sdist, venv / "bin")


def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        found = next(item for item in archive.namelist() if item.endswith(f".dist-info/{name}"))
        return archive.read(found).decode()


def test_the_wheel_holds_the_four_packages_and_nothing_else(built: Built) -> None:
    names = wheel_names(built.wheel)
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    in_tree = {
        str(path.relative_to(folder.parent))
        for folder in (
            ROOT / "client/hs_client",
            ROOT / "formats/hs_formats",
            ROOT / "mover/hs_mover",
            ROOT / "server_launch/hs_server",
        )
        for path in folder.rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == in_tree


def test_metadata_says_licence_scripts_and_plugins(built: Built) -> None:
    found: Message = Parser().parsestr(metadata(built.wheel, "METADATA"))
    assert (found["Name"], found["License-Expression"], found["Requires-Python"]) == (
        "hs-extract",
        "Apache-2.0",
        ">=3.11",
    )
    base = {line.split(";")[0] for line in found.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert not any(line.startswith(("torch", "sglang", "transformers")) for line in base)
    assert {"server", "tokenize", "train"} <= set(found.get_all("Provides-Extra", []))
    assert "licenses/LICENSE" in " ".join(wheel_names(built.wheel))
    points = metadata(built.wheel, "entry_points.txt")
    assert "[sglang.srt.plugins]\nhs_capture = hs_server.plugin:install\n" in points
    assert all(f"{script} = " in points for script in SCRIPTS)


def test_the_sdist_is_whole_and_builds_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in (
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "docs/README.md",
        "tests/conftest.py",
        "requirements/dev.txt",
    ):
        assert (source / name).is_file(), name
    assert not list(source.rglob("__pycache__"))
    (again,) = build(source, tmp_path / "dist", "wheel")
    assert wheel_names(again) == wheel_names(built.wheel)
    with zipfile.ZipFile(again) as second, zipfile.ZipFile(built.wheel) as first:
        assert {item.filename: item.CRC for item in second.infolist()} == {
            item.filename: item.CRC for item in first.infolist()
        }


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run_without_torch_and_sglang(built: Built, script: str, tmp_path: Path) -> None:
    shown = built.run(script, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert script in shown.stdout
    assert not shown.stderr


def test_user_errors_of_a_bare_environment_have_a_remedy(built: Built, tmp_path: Path) -> None:
    launch = built.run("hs-server", "launch", "--model-path", "some/model", cwd=tmp_path)
    assert launch.returncode == 3
    assert launch.stderr.startswith(f"error: SGLang is not installed in {built.bin.parent}\n  run hs-server from")
    moved = built.run("hs-mover", "--src", f"{tmp_path}/scratch", "--dst", f"{tmp_path}/data", "--once", cwd=tmp_path)
    assert moved.returncode == 0, moved.stderr
    (tmp_path / "p.jsonl").write_text('{"text": "x"}\n')
    sent = built.run(
        "hs-client", "run", "p.jsonl", "--server", "http://127.0.0.1:9", "--scratch", "scratch", cwd=tmp_path
    )
    assert (sent.returncode, sent.stderr.startswith("error: no server answers at http://127.0.0.1:9")) == (4, True)


def test_an_export_of_a_bare_environment_names_what_to_install(built: Built, tmp_path: Path) -> None:
    done = built.run("hs-client", "export", str(tmp_path), "--format", "pt", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        3,
        "error: --format pt needs the package torch: pip install 'hs-extract[export]'\n",
    )


def test_nothing_but_what_needs_them_imports_torch_and_other_extras(built: Built, tmp_path: Path) -> None:
    done = built.run("python", "-c", IMPORT_ALL, ",".join(PACKAGES), ",".join(LEFT_OUT), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    failed: dict[str, str] = json.loads(done.stdout)
    assert "hs_formats.reader" in failed
    assert {name for name, package in failed.items() if package == "jinja2"} == NEED_JINJA
    assert {package for name, package in failed.items() if name.startswith("hs_client.export.")} <= EXPORT_PACKAGES
    assert [name for name in failed if not name.startswith(NEED_TORCH) and name not in NEED_JINJA] == []


def test_a_consumer_type_checks_without_settings(built: Built, tmp_path: Path) -> None:
    for text, expected in ((CONSUMER, 0), (MISUSE, 1)):
        (tmp_path / "consumer.py").write_text(text)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--no-incremental"),
                *("--python-executable", str(built.bin / "python"), "consumer.py"),
            ],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "MYPYPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
