"""SGLang plugin `hs_cpu_profile`: chooses the attention path that is right for MLA models on a CPU.

SGLang's `torch_native` attention ignores the keys and values it is handed and reads the KV pool. For MLA models
(DeepSeek and kin) the pool holds the latent, so only the absorbed path is right. SGLang has no rule for `torch_native`
and falls back to triton's, which takes the other path for prompts without a cached prefix: no error, wrong states.
Inert unless the cpu profile set its variable.
"""

from __future__ import annotations

import os

__all__ = ["ENV_CPU_PROFILE", "install"]

ENV_CPU_PROFILE = "SGLANG_HS_CPU_PROFILE"


def install() -> None:
    """Entry point, called by SGLang in its main process and in each scheduler process."""
    if os.environ.get(ENV_CPU_PROFILE) != "1":
        return
    try:
        _use_absorbed_mla()
    except Exception as error:
        # SGLang logs a plugin's Exception and goes on, which here would mean silently wrong states.
        raise SystemExit(f"hs_cpu_profile: this SGLang cannot be fixed up for the CPU: {error!r}") from error


def _use_absorbed_mla() -> None:
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers

    def absorbed(attention: object, forward_batch: object) -> object:
        return handlers._dispatch_mla_subtype(attention, forward_batch)  # noqa: SLF001 - SGLang's own handlers do so

    handlers.AttentionBackendRegistry.register("torch_native", absorbed)
