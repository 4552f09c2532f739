"""A tiny Kimi-K2.5: the wrapper with a vision tower, a projector and a processor around a tiny DeepSeek-V3.

SGLang knows the architecture; transformers does not, so the language model lies in a subfolder as well, for the tests
to compare with. The processor is code in the model's folder, as the real model's is: it makes one token of any image.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["MEDIA_TOKEN", "TEXT_FOLDER", "save_tiny_kimi"]

MEDIA_TOKEN = "<|media_pad|>"
TEXT_FOLDER = "text"
"""Where in the model's folder the language model lies by itself."""

_VISION_SIZE = 32
_VISION_MLP_SIZE = 64
_VISION_LAYERS = 2
_PATCH = 14
_MERGE = 2
_POSITIONS = 8

_CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ ' <|' + message['role'] + '|> ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}{{ ' <|media_pad|> ' }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ ' ' + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <|assistant|>' }}{% endif %}"
)

_PROCESSOR = f'''"""Processor of a tiny Kimi-K2.5: every image becomes one token."""

from __future__ import annotations

import torch
from transformers import AutoTokenizer
from transformers.image_processing_base import ImageProcessingMixin


class TinyMediaProcessor(ImageProcessingMixin):
    media_proc_cfg = {{
        "patch_size": {_PATCH},
        "merge_kernel_size": {_MERGE},
        "in_patch_limit": 4,
        "patch_limit_on_one_side": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }}

    def media_tokens_calculator(self, media):
        return 1


class TinyKimiProcessor:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.image_processor = self.media_processor = TinyMediaProcessor()
        self.chat_template = tokenizer.chat_template

    @classmethod
    def register_for_auto_class(cls, auto_class=None):
        pass

    @classmethod
    def from_pretrained(cls, name, **kwargs):
        return cls(AutoTokenizer.from_pretrained(name))

    def __call__(self, text, medias=(), **kwargs):
        out = {{"input_ids": self.tokenizer(text, return_tensors="pt")["input_ids"]}}
        if medias:
            patches = {_MERGE * _MERGE} * len(medias)
            out["pixel_values"] = torch.linspace(-1, 1, patches * 3 * {_PATCH * _PATCH}).reshape(
                patches, 3, {_PATCH}, {_PATCH}
            )
            out["grid_thws"] = torch.tensor([[1, {_MERGE}, {_MERGE}]] * len(medias))
        return out
'''


def save_tiny_kimi(language_model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the model below `folder`.

    Args:
        language_model: a DeepseekV3ForCausalLM of transformers.
        tokenizer: its tokenizer; has a token MEDIA_TOKEN.
        folder: exists.
    """
    import torch
    from safetensors.torch import load_file, save_file

    text = folder / TEXT_FOLDER
    language_model.save_pretrained(str(text))
    tokenizer.save_pretrained(str(text))
    # As saved, not as in memory: transformers stacks the experts of a layer.
    weights = {f"language_model.{name}": value for name, value in load_file(text / "model.safetensors").items()}
    for name, shape in _vision_shapes(language_model.config.hidden_size).items():
        values = torch.ones(shape) if "norm" in name and name.endswith("weight") else torch.randn(shape) * 0.1
        weights[name] = values.to(torch.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.save_pretrained(str(folder))
    (folder / "processing_tiny_kimi.py").write_text(_PROCESSOR)
    auto_map = {"AutoProcessor": "processing_tiny_kimi.TinyKimiProcessor"}
    _write_json(folder / "processor_config.json", {"auto_map": auto_map, "processor_class": "TinyKimiProcessor"})
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "auto_map": auto_map,
        "dtype": "float32",
        "media_placeholder_token_id": tokenizer.convert_tokens_to_ids(MEDIA_TOKEN),
        "text_config": json.loads((text / "config.json").read_text()),
        "vision_config": {
            "patch_size": _PATCH,
            "init_pos_emb_height": _POSITIONS,
            "init_pos_emb_width": _POSITIONS,
            "init_pos_emb_time": 4,
            "pos_emb_type": "divided_fixed",
            "num_attention_heads": 2,
            "num_hidden_layers": _VISION_LAYERS,
            "hidden_size": _VISION_SIZE,
            "vt_hidden_size": _VISION_SIZE,
            "intermediate_size": _VISION_MLP_SIZE,
            "merge_kernel_size": [_MERGE, _MERGE],
            "video_attn_type": "spatial_temporal",
            "merge_type": "sd2_tpool",
            "mm_projector_type": "patchmerger",
            "mm_hidden_size": _VISION_SIZE,
            "text_hidden_size": language_model.config.hidden_size,
        },
    }
    _write_json(folder / "config.json", config)


def _vision_shapes(text_size: int) -> dict[str, tuple[int, ...]]:
    """Names, as in the real model's files, and shapes of what is not the language model."""
    size, merged = _VISION_SIZE, _VISION_SIZE * _MERGE * _MERGE
    shapes: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj.weight": (size, 3, _PATCH, _PATCH),
        "vision_tower.patch_embed.proj.bias": (size,),
        "vision_tower.patch_embed.pos_emb.weight": (_POSITIONS, _POSITIONS, size),
        "vision_tower.encoder.final_layernorm.weight": (size,),
        "vision_tower.encoder.final_layernorm.bias": (size,),
        "mm_projector.pre_norm.weight": (size,),
        "mm_projector.pre_norm.bias": (size,),
        "mm_projector.proj.0.weight": (merged, merged),
        "mm_projector.proj.0.bias": (merged,),
        "mm_projector.proj.2.weight": (text_size, merged),
        "mm_projector.proj.2.bias": (text_size,),
    }
    linears = {"wqkv": (3 * size, size), "wo": (size, size)}
    linears |= {"mlp.fc0": (_VISION_MLP_SIZE, size), "mlp.fc1": (size, _VISION_MLP_SIZE)}
    for layer in range(_VISION_LAYERS):
        block = f"vision_tower.encoder.blocks.{layer}"
        for norm in ("norm0", "norm1"):
            shapes |= {f"{block}.{norm}.weight": (size,), f"{block}.{norm}.bias": (size,)}
        for linear, (rows, columns) in linears.items():
            shapes |= {f"{block}.{linear}.weight": (rows, columns), f"{block}.{linear}.bias": (rows,)}
    return shapes


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
