"""Tiny random models that a real SGLang and transformers both run exactly, one of each family that starts on a CPU.

They are initialised wide, so that the residual stream changes clearly from layer to layer: with the usual narrow
initialisation neighbouring layers agree so well that a boundary off by one would pass a comparison. They are built
once into `.cache/models` of the repository (or `$HS_MODELS_CACHE`), by rename, so that parallel builders cannot harm
each other. Run as a script it builds all and prints the folders.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_kimi import MEDIA_TOKEN, TEXT_FOLDER, save_tiny_kimi

__all__ = [
    "HIDDEN_SIZE",
    "NUM_LAYERS",
    "TINY_MODELS",
    "VOCAB_SIZE",
    "models_cache",
    "text_model",
    "tiny_model",
    "token_text",
]

# In the folder's name: raise it with every change that alters a byte of a model.
VERSION = 4

VOCAB_SIZE = 512
HIDDEN_SIZE = 128
# Enough that the default boundaries 2, L//2, L-3 are three different ones.
NUM_LAYERS = 8

_CONTEXT_TOKENS = 2048
_BOS, _EOS, _UNK = "<s>", "</s>", "<unk>"
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ ' <|' + message['role'] + '|> ' + message['content'] + ' ' + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <|assistant|>' }}{% endif %}"
)

TINY_MODELS = ("tiny-llama", "tiny-dsv3", "wide-llama", "tiny-qwen3", "tiny-qwen3-moe", "tiny-kimi")
"""wide-llama is the first with four times the hidden size: many bytes a token, to fill a scratch with."""


def models_cache() -> Path:
    """The folder that holds the built models."""
    override = os.environ.get("HS_MODELS_CACHE")
    return Path(override) if override else Path(__file__).resolve().parents[2] / ".cache" / "models"


def token_text(token_id: int) -> str:
    """The word whose token id is `token_id`; words are joined by spaces."""
    special = (_UNK, _BOS, _EOS)
    if token_id < len(special):
        return special[token_id]
    first_role = VOCAB_SIZE - len(_ROLES)
    return _ROLES[token_id - first_role] if token_id >= first_role else f"w{token_id}"


def tiny_model(name: str) -> Path:
    """The folder of the model `name` (one of TINY_MODELS), built where it is missing."""
    if name not in TINY_MODELS:
        raise ValueError(f"{name!r} is not one of {', '.join(TINY_MODELS)}")
    cache = models_cache()
    folder = cache / f"{name}-v{VERSION}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        _build(name, building)
        building.chmod(0o755)
        try:
            building.rename(folder)
        except OSError:
            # Somebody else's build of the same version came first: equal, since the seed is fixed.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def text_model(name: str) -> Path:
    """The folder of the model `name` as transformers runs it: of a wrapper, the language model inside."""
    folder = tiny_model(name)
    return folder / TEXT_FOLDER if (folder / TEXT_FOLDER).is_dir() else folder


def _build(name: str, folder: Path) -> None:
    from hs_server.cpu_profile import torchvision_schemas

    torchvision_schemas.install()
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    # The caller's random state is none of our business.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20_240_607)
        model = _MAKERS[name]()
        _rescale_stream(model)
        _randomise_routing_bias(model)
        model.to(torch.float32)
        if name == "tiny-kimi":
            save_tiny_kimi(model, _tokenizer(MEDIA_TOKEN), folder)
            return
        model.save_pretrained(str(folder))
    _tokenizer().save_pretrained(str(folder))


def _llama(hidden_size: int = HIDDEN_SIZE) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=hidden_size,
            intermediate_size=256,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=_CONTEXT_TOKENS,
            initializer_range=0.07,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
            dtype="float32",
        )
    )


def _qwen3_sizes() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 256,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": _CONTEXT_TOKENS,
        "initializer_range": 0.07,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_qwen3_sizes()))


def _qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    moe: dict[str, Any] = {
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],  # SGLang takes every layer for a sparse one
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_qwen3_sizes(), **moe))


def _deepseek_v3() -> Any:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    only_sglang: dict[str, Any] = {
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "ep_size": 1,
        "num_nextn_predict_layers": 0,
    }
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=HIDDEN_SIZE,
            intermediate_size=256,
            moe_intermediate_size=64,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
            n_shared_experts=1,
            n_routed_experts=8,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=32,
            q_lora_rank=64,
            qk_rope_head_dim=16,
            qk_nope_head_dim=32,
            v_head_dim=32,
            max_position_embeddings=_CONTEXT_TOKENS,
            initializer_range=0.07,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
            dtype="float32",
            **only_sglang,
        )
    )


_MAKERS: dict[str, Callable[[], Any]] = {
    "tiny-llama": _llama,
    "tiny-dsv3": _deepseek_v3,
    "wide-llama": lambda: _llama(4 * HIDDEN_SIZE),
    "tiny-qwen3": _qwen3,
    "tiny-qwen3-moe": _qwen3_moe,
    "tiny-kimi": _deepseek_v3,
}


def _rescale_stream(model: Any) -> None:
    """Keep the residual stream near 1 in size, or float32 rounding alone would use up an absolute tolerance.

    Norms precede every reader of the stream, so scaling what is written to it changes its size and nothing else.
    """
    for name, parameter in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            parameter.data.mul_(1 / 4)
        elif "embed_tokens" in name:
            parameter.data.normal_(0.0, 0.2)


def _randomise_routing_bias(model: Any) -> None:
    """Zero by default, which would leave the bias-corrected routing of DeepSeek-V3 untested."""
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0.0, 0.05)


def _tokenizer(media_token: str | None = None) -> Any:
    """The tokenizer; with `media_token`, that stands for the last id before the roles."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token_text(token_id): token_id for token_id in range(VOCAB_SIZE)}
    if media_token:
        last = VOCAB_SIZE - len(_ROLES) - 1
        del vocabulary[token_text(last)]
        vocabulary[media_token] = last
    words = Tokenizer(WordLevel(vocabulary, unk_token=_UNK))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=_BOS,
        eos_token=_EOS,
        unk_token=_UNK,
        additional_special_tokens=[*_ROLES, *([media_token] if media_token else [])],
        model_max_length=_CONTEXT_TOKENS,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


if __name__ == "__main__":
    for model_name in TINY_MODELS:
        sys.stdout.write(f"{tiny_model(model_name)}\n")
