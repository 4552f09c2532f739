"""Published wheels of SGLang: the patch goes in and comes out on each, and the table of versions says what is there.

The wheels are read, not run. The first run fetches 105 MB into .cache/sglang.
"""

from __future__ import annotations

import ast
import functools
import re
import zipfile
from pathlib import Path

import pytest

from hs_client.generate.options import GenerateOptions
from hs_server.capture.families import FAMILIES, WRAPPERS, Family
from hs_server.capture.hooks import TARGETS
from hs_server.patch.bytecode import compiled_files
from hs_server.patch.installation import PATCHED_FILE, Installation
from hs_server.patch.source import ANCHORS
from hs_server.versions import FLAGS, READ, release
from other_sglang import sglang_wheel
from sglang_overlay import file_hashes

VERSIONS = ("0.5.9", "0.5.10.post1", "0.5.14", "0.5.16", "0.5.20", "0.5.23")
WANTED = re.compile(
    r"sglang-[^/]*\.dist-info/RECORD|sglang/(_?version\.py|srt/(server_args\.py|arg_groups/.*\.py|plugins/.*\.py|"
    r"models/\w+\.py|layers/logits_processor\.py|managers/(tp_worker|tokenizer_manager|"
    r"scheduler_output_processor_mixin|scheduler_components/output_streamer)\.py|sampling/sampling_params\.py|"
    r"model_executor/model_runner\.py|model_loader/(loader|__init__)\.py))"
)


@pytest.fixture(scope="module", params=VERSIONS)
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(sglang_wheel(request.param)) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if WANTED.fullmatch(name)])
    return Installation(folder / "sglang")


def test_the_patch_goes_in_compiles_and_comes_out(installation: Installation) -> None:
    before = file_hashes(installation.package)
    assert installation.version() in VERSIONS
    assert installation.version() in READ
    assert installation.patch() == (True, 0)
    assert installation.reason_not_patched() is None
    compile(installation.file.read_text(), str(installation.file), "exec", dont_inherit=True)
    after = file_hashes(installation.package)
    assert {name for name in before if before[name] != after[name]} == {str(PATCHED_FILE)}
    assert installation.patch() == (False, 0)
    assert installation.revert() == (True, 0)
    assert file_hashes(installation.package) == before
    assert compiled_files(installation.file) == []


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.statement)
def test_a_file_without_one_of_the_statements_is_left_as_it_is(installation: Installation, anchor: object) -> None:
    from hs_server.patch.source import PatchError, apply_patch

    statement = getattr(anchor, "statement")  # noqa: B009
    text = installation.file.read_text()
    assert text.count(f"{statement}\n") == 1
    for damaged in (text.replace(f"{statement}\n", "pass\n"), f"{text}\n\ndef f(self):\n    {statement}\n"):
        with pytest.raises(PatchError):
            apply_patch(damaged)


def test_the_arguments_are_those_of_the_table(installation: Installation) -> None:
    srt = installation.package / "srt"
    source = "\n".join(path.read_text() for path in [srt / "server_args.py", *(srt / "arg_groups").rglob("*.py")])
    version = release(installation.version())
    for flag in FLAGS:
        field = flag.name.removeprefix("--").replace("-", "_")
        # Either given to argparse, or made of an annotated field.
        there = re.search(rf"^\s+\"{flag.name}\",$|^    {field}: A\[", source, re.MULTILINE) is not None
        assert there == version.takes(flag.name), flag.name
    assert (srt / "plugins").is_dir() == version.plugins


def test_what_is_hooked_is_there(installation: Installation) -> None:
    for target in TARGETS:
        module, name, method = target.rsplit(".", 2)
        found = _function(installation.package.parent / f"{module.replace('.', '/')}.py", name, method)
        if method == "forward":
            given = [argument.arg for argument in found.args.args]
            assert given[1:6] == ["input_ids", "hidden_states", "lm_head", "logits_metadata", "aux_hidden_states"]


def test_answers_come_with_the_ids_that_were_generated(installation: Installation) -> None:
    """`hs-client run --generate` takes the ids of an answer, the one that ended it included, and their count."""
    srt = installation.package / "srt"
    senders = ("scheduler_output_processor_mixin.py", "scheduler_components/output_streamer.py")
    (sender,) = [srt / "managers" / name for name in senders if (srt / "managers" / name).is_file()]
    sent = ast.unparse(_parsed(sender))
    assert "output_ids_ = req.output_ids_through_stop" in sent
    assert "output_ids.append(output_ids_[send_token_offset:])" in sent
    assert re.search(r"completion_tokens\.append\(.*len\(output_ids_\)\)", sent)
    answered = ast.unparse(_parsed(srt / "managers" / "tokenizer_manager.py"))
    # With text, and without where the server has no tokenizer.
    ids = r"'output_ids': (output_token_ids|state\.output_ids\.copy\(\)), 'meta_info'"
    assert re.search(rf"\{{'text': [\w.()]+, {ids}", answered)
    assert re.search(rf"\{{{ids}", answered)
    taken = (srt / "sampling" / "sampling_params.py").read_text()
    for name in GenerateOptions(temperature=1, stop=("a",)).sampling(1, 2):
        assert re.search(rf"^ +{name}: ", taken, re.MULTILINE), name


def test_source_mode_finds_the_runner_above_the_model(installation: Installation) -> None:
    """The model is built below ModelRunner.load_model, and not in a thread of its own."""
    runner = installation.package / "srt" / "model_executor" / "model_runner.py"
    assert _function(runner, "ModelRunner", "load_model").args.args[0].arg == "self"
    loader = installation.package / "srt" / "model_loader" / "loader.py"
    built = ast.unparse(_function(loader, "DefaultModelLoader", "load_model"))
    assert "_initialize_model(" in built
    assert "Thread(" not in built


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_models_are_told_alike_in_all_versions(installation: Installation, family: Family) -> None:
    """What the table of families says of 0.5.20 holds, so far as names show it; the capture refuses anything else."""
    models = installation.package / "srt" / "models"
    for name in family.classes:
        assert any("self.capture_aux_hidden_states" in text for text in _lineage(models, *name.split("."))), name
    inner = "\n".join(_lineage(models, family.classes[0].split(".")[0], family.inner))
    assert "self.layers_to_capture" in inner
    assert ("def set_eagle3_layers_to_capture(" in inner) == (family.flag == "setter")


def test_wrappers_call_a_language_model(installation: Installation) -> None:
    for name in WRAPPERS:
        (text, *_) = _lineage(installation.package / "srt" / "models", *name.split("."))
        assert "self.language_model = Deepseek" in text


def _lineage(models: Path, file: str, name: str) -> list[str]:
    """The source of the class `name`, as `file` knows it, and of its bases among the models."""
    tree = _parsed(models / f"{file}.py")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            return [ast.unparse(node), *(text for base in bases for text in _lineage(models, file, base))]
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            module = (node.module or "").rpartition(".")[2]
            (original,) = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
            return _lineage(models, module, original) if (models / f"{module}.py").is_file() else []
    return []


@functools.cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _function(file: Path, class_name: str, name: str) -> ast.FunctionDef:
    tree = _parsed(file)
    (scope,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    (found,) = [node for node in scope.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found
