"""A deepseek_v2.py reduced to where the patch goes, runnable without SGLang and torch."""

from __future__ import annotations

__all__ = ["SKELETON"]

SKELETON = '''\
"""A skeleton."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class DeepseekV2Model:
    def __init__(self, config, quant_config=None, prefix=""):
        self.layers = []
        self.layers_to_capture = []
        self.config = config

    def forward(self, input_ids):
        return [1.0, 2.0], ["aux"]


class DeepseekV2ForCausalLM:
    def __init__(
        self,
        config,
        quant_config=None,
        prefix="",
    ):
        self.model = DeepseekV2Model(config)
        self.capture_aux_hidden_states = False

    def forward(self, input_ids, positions, forward_batch):
        hidden_states = self.model.forward(input_ids)
        aux_hidden_states = None
        if self.capture_aux_hidden_states:
            hidden_states, aux_hidden_states = hidden_states

        return hidden_states, aux_hidden_states


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    pass


EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
'''
