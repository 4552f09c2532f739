from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from hs_server.cpu_profile.model_files import find_models_folder, unneeded_model_files
from hs_server.cpu_profile.settings import ON_PYTHONPATH
from tiny_models import NUM_LAYERS, TINY_MODELS, VOCAB_SIZE, text_model, tiny_model, token_text


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    for name, text in {
        "__init__": "",
        "registry": "",
        "utils": "",
        "one": "EntryClass = OneForCausalLM\n",
        "two": "from one import OneForCausalLM\nEntryClass = [\n    TwoForCausalLM,\n    TwoMoeForCausalLM,\n]\n",
        "typed": "EntryClass: list = [TypedForCausalLM]\n",
        "none": "x = 'OneForCausalLM'\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("architectures", "skipped"),
    [
        (["OneForCausalLM"], ("none", "two", "typed")),
        (["TwoMoeForCausalLM"], ("none", "one", "typed")),
        (["TypedForCausalLM", "OneForCausalLM"], ("none", "two")),
        (["ForCausalLM"], ()),
        (["OneForCausalLM", "Unknown"], ()),
        ([], ()),
    ],
)
def test_unneeded_model_files(models_folder: Path, architectures: list[str], skipped: tuple[str, ...]) -> None:
    assert unneeded_model_files(architectures, models_folder=models_folder) == skipped


@pytest.mark.parametrize(
    ("architecture", "file"),
    [("LlamaForCausalLM", "llama"), ("DeepseekV3ForCausalLM", "deepseek_v2"), ("Qwen3ForCausalLM", "qwen3")],
)
def test_model_files_of_the_installed_sglang(architecture: str, file: str) -> None:
    folder = find_models_folder()
    assert folder is not None
    skipped = unneeded_model_files([architecture], models_folder=folder)
    kept = {path.stem for path in folder.glob("*.py")} - set(skipped)
    assert kept - {"__init__", "registry", "utils"} == {file}


@pytest.mark.parametrize("active", ["1", ""])
def test_stand_ins_are_there_only_in_the_cpu_profile(active: str) -> None:
    code = (
        "import sys\n"
        "finders = {type(f).__name__ for f in sys.meta_path}\n"
        "print('_BeforeTorchvision' in finders)\n"
        "print(__import__('sgl_kernel').__version__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ON_PYTHONPATH), "SGLANG_HS_CPU_PROFILE": active},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [str(active == "1"), "0.0.0+hs.cpu.stub"]


def test_a_hidden_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    done = subprocess.run(
        [sys.executable, "-c", "pass"],
        env={"PYTHONPATH": f"{ON_PYTHONPATH}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "the other one\n"


def test_the_plugin_does_nothing_outside_the_profile() -> None:
    code = "import sys; from hs_server.cpu_profile.plugin import install; install(); sys.exit('sglang' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={}).returncode == 0


def test_the_plugin_ends_a_process_that_it_cannot_fix_up() -> None:
    code = "import sys; sys.modules['sglang'] = None; from hs_server.cpu_profile.plugin import install; install()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"SGLANG_HS_CPU_PROFILE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "cannot be fixed up" in done.stderr


def test_triton_mock_decorates_and_says_it_is_no_compiler() -> None:
    code = (
        "from hs_server.cpu_profile import triton_mock\n"
        "assert triton_mock.TritonFinder().find_spec('triton.x') is not None\n"
        "import importlib.util, sys\n"
        "if importlib.util.find_spec('triton') is not None: sys.exit(0)\n"
        "assert triton_mock.install() and triton_mock.install()\n"
        "import triton, triton.language as tl\n"
        "from triton.runtime.autotuner import OutOfResources\n"
        "f = lambda: 7\n"
        "assert triton.jit(f) is f and triton.autotune(configs=[triton.Config({})], key=[])(f) is f\n"
        "assert triton.cdiv(7, 2) == 4 and triton.next_power_of_2(5) == 8\n"
        "assert tl.constexpr(3).value == 3 and issubclass(OutOfResources, Exception)\n"
        "from triton.backends import backends\n"
        "assert backends == {}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", TINY_MODELS)
def test_neighbouring_layers_of_the_tiny_models_differ(name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(text_model(name)).eval()
    ids = torch.randint(3, 500, (1, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    assert len(states) == NUM_LAYERS + 1
    for before, after in itertools.pairwise(states):
        changes = (after - before).norm(dim=-1) / before.norm(dim=-1)
        assert changes.min().item() > 0.1


def test_tokenizer_of_the_tiny_models() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model("tiny-llama"))
    ids = list(range(VOCAB_SIZE))
    assert tokenizer(" ".join(map(token_text, ids)), add_special_tokens=False)["input_ids"] == ids
    messages = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == [1, 510, 5, 6, 2, 511, 7, 2]
