"""Chat rows: ids as the template gives them, masks that begin where the last turn does, no second BOS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chat_families import family_tokenizer
from hs_client.chat_options import ChatOptions
from hs_client.errors import NoTokenizer
from hs_client.identity import tokenizer_files
from hs_client.limits import Limits
from hs_client.prepare import prepare
from hs_client.row_error import RowError
from hs_client.rows import parse_row
from hs_client.tokenizing import ChatTokenizer, load_tokenizer
from tiny_models import tiny_model

_THINK = (
    "{% for m in messages %}<s> <|{{ m.role }}|> "
    "{% set c = m.content %}"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in c %}"
    "{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{ c }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<s> <|assistant|> "
    "{% if enable_thinking is not false %}<think> {% endif %}{% endif %}"
)

_HALF = '[{"type": "function", "name": "add", "arguments": {"a": "\\ud83d"}}]'


@pytest.fixture(scope="module")
def raw() -> Any:
    return load_tokenizer(str(tiny_model("tiny-llama")))._tokenizer


@pytest.fixture
def tokenizer(raw: Any) -> ChatTokenizer:
    return ChatTokenizer(raw)


def _turns(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": content} for at, content in enumerate(contents)]


def test_the_mask_is_the_last_turn_and_the_ids_are_the_templates(raw: Any) -> None:
    turns = _turns("w9 w8", "w7", "w6", "w5 w4 w3")
    tokens = ChatTokenizer(raw, ChatOptions(train_on="last")).chat(turns, {})
    assert tokens.ids == raw.apply_chat_template(turns, tokenize=True, return_dict=False)
    assert tokens.ids.count(raw.bos_token_id) == 1
    ((start, stop),) = tokens.spans
    assert raw.decode(tokens.ids[start:stop]).split() == ["w5", "w4", "w3", "</s>"]
    prompt = raw.apply_chat_template(turns[:-1], tokenize=True, return_dict=False, add_generation_prompt=True)
    assert tokens.ids[:start] == prompt


def test_every_turn_of_the_assistant_is_trained_on_unless_it_weighs_nothing(raw: Any, tokenizer: ChatTokenizer) -> None:
    turns: list[dict[str, Any]] = list(_turns("w9 w8", "w7", "w6", "w5 w4", "w3"))
    tokens = tokenizer.chat(turns, {})
    texts = [raw.decode(tokens.ids[start:stop]).split() for start, stop in tokens.spans]
    assert texts == [["w7", "</s>"], ["w5", "w4", "</s>"]]
    turns[1]["weight"] = 0
    assert tokenizer.chat(turns, {}).spans == tokens.spans[1:]


def test_a_lean_process_tokenises_alike_without_torch(raw: Any) -> None:
    code = (
        "import sys; from hs_client.tokenizing import load_tokenizer; from hs_client.messages import check_messages;"
        f"tokenizer = load_tokenizer({str(tiny_model('tiny-llama'))!r}, lean=True);"
        f"print(tokenizer.chat(check_messages({_turns('w5', 'w6 w7')!r}), {{}}).ids, 'torch' in sys.modules);"
        "import torch; print(torch.ones(2).sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ids = ChatTokenizer(raw).chat(_turns("w5", "w6 w7"), {}).ids
    assert done.stdout.split("\n")[:2] == [f"{ids} False", "2.0"]
    assert "PyTorch was not found" not in done.stderr


@pytest.mark.usefixtures("raw")
def test_a_folder_that_is_not_there_is_not_called_a_bad_name(tmp_path: Path) -> None:
    with pytest.raises(NoTokenizer, match=r"there is no such folder\): name another with --tokenizer"):
        load_tokenizer(str(tmp_path / "none"))


def test_a_text_with_its_own_bos_gets_no_second_one(raw: Any, tokenizer: ChatTokenizer) -> None:
    assert tokenizer.text("<s> w5").ids == [raw.bos_token_id, 5]
    assert tokenizer.text("w5 w6").ids == raw("w5 w6")["input_ids"]
    tokens = tokenizer.prompt("<s> w5", "w6 w7")
    assert (tokens.ids, tokens.spans) == ([raw.bos_token_id, 5, 6, 7], [(2, 4)])


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("last", ["w5 w4", "<think> w3 </think> w5 w4"])
def test_templates_that_drop_or_open_think_blocks(raw: Any, thinking: bool, last: str) -> None:
    turns = _turns("w9", "<think> w1 </think> w2", "w8", last)
    kwargs = {"enable_thinking": thinking}
    tokens = ChatTokenizer(raw, ChatOptions(template=_THINK, arguments=kwargs, train_on="last")).chat(turns, {})
    assert tokens.ids == raw.apply_chat_template(
        turns, tokenize=True, return_dict=False, chat_template=_THINK, **kwargs
    )
    text = raw.apply_chat_template(turns, tokenize=False, chat_template=_THINK, **kwargs)
    rest = text[text.rindex("<|assistant|>") + len("<|assistant|>") :].split()
    ((start, stop),) = tokens.spans
    assert stop == len(tokens.ids)
    # A block that the generation prompt opens belongs to the prompt when the turn has one.
    assert stop - start == len(rest) - (thinking and last.startswith("<think>"))


def test_a_conversation_that_the_template_refuses_is_rejected_with_its_words(raw: Any) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RowError, match="the chat template refuses the conversation: roles must alternate"):
        ChatTokenizer(raw, ChatOptions(template=template)).chat(_turns("w1", "w2"), {})


def test_a_template_that_hides_a_turn_is_rejected(raw: Any) -> None:
    counted = "{{ messages | length }}{% for i in range(messages | length) %} {{ messages[i].content }}{% endfor %}"
    with pytest.raises(RowError, match="turn 1 so that its borders cannot be told: give input_ids and loss_mask"):
        ChatTokenizer(raw, ChatOptions(template=counted)).chat(_turns("w1", "w2", "w3", "w4"), {})


def test_hashes_tell_template_from_tokenizer(tmp_path: Any) -> None:
    one, two, three = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for folder, template, vocabulary in ((one, "a", "x"), (two, "b", "x"), (three, "a", "y")):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(vocabulary)
        (folder / "tokenizer_config.json").write_text(f'{{"chat_template": "{template}", "bos_token": "<s>"}}')
    first, second, third = (tokenizer_files(str(folder)) for folder in (one, two, three))
    assert first.tokenizer_hash() == second.tokenizer_hash() != third.tokenizer_hash()
    assert first.template_hash() == third.template_hash() != second.template_hash()
    assert tokenizer_files("nobody/nothing").tokenizer_hash() == ""


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": _HALF},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": _HALF}]},
    ],
)
def test_half_a_character_in_json_inside_json_costs_one_row(row: dict[str, Any]) -> None:
    """Escaped twice it is seen only once the inner JSON is read."""
    found = parse_row(json.dumps({"id": "a", **row}).encode())
    tokenizer = ChatTokenizer(family_tokenizer("qwen3"), ChatOptions())
    with pytest.raises(RowError, match="holds a lone surrogate"):
        prepare(found, "f:1", limits=Limits(1000), tokenizer=tokenizer)


def test_a_row_too_deep_for_the_template_costs_one_row() -> None:
    tokenizer = ChatTokenizer(family_tokenizer("qwen3"), ChatOptions())
    refused = 0
    for depth in range(900, 1000, 3):
        deep = json.dumps({"role": "user", "content": "a", "more": "DEEP"}).replace('"DEEP"', "[" * depth + "]" * depth)
        line = f'{{"messages": [{deep}, {{"role": "assistant", "content": "b"}}]}}'
        try:
            prepare(parse_row(line.encode()), "f:1", limits=Limits(1000), tokenizer=tokenizer)
        except RowError as error:
            assert "nested too deeply" in error.reason or "refuses the conversation" in error.reason  # noqa: PT017
            refused += 1
    assert refused
