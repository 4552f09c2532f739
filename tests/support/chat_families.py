"""Small real tokenizers (byte-level BPE, trained here) with chat templates in the manner of well-known families.

The templates are our own and lie in ``tests/golden/templates``; each family has the traits that make masks hard: a
header that is trimmed or opened differently, reasoning that is dropped from earlier turns, tool calls as text, as
objects, or only where the content is null.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "family_template", "family_tokenizer"]

_TEMPLATES = Path(__file__).resolve().parents[1] / "golden" / "templates"

_SPECIAL = {
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "qwen3": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "deepseek": (
        *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁sep｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ),
    "kimi": (
        *("[BOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
}
_BOS = {"llama3": "<|begin_of_text|>", "deepseek": "<｜begin▁of▁sentence｜>", "kimi": "[BOS]"}
_EOS = {"llama3": "<|eot_id|>", "qwen3": "<|im_end|>", "deepseek": "<｜end▁of▁sentence｜>", "kimi": "<|im_end|>"}
_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Added tokens that are not special, as Qwen has them."""

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and says hello to the world",
    'what is two and two? it is four. {"name": "add", "arguments": {"a": 2, "b": 2}}',
    "systems assistant user tool system\n\nassistant\nuser\n  indented  text with   spaces",
    "Grüße aus Köln, naïve café, 你好世界, これはペンです, Привет мир",
)

FAMILIES = tuple(_SPECIAL)


def family_template(family: str) -> str:
    """The chat template's source."""
    return (_TEMPLATES / f"{family}.jinja").read_text()


@functools.cache
def family_tokenizer(family: str) -> Any:
    """A transformers tokenizer of the family, with its template."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = Decoder()
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL[family]])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _PLAIN])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BOS.get(family),
        eos_token=_EOS[family],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = family_template(family)
    return wrapped
