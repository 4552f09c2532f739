"""`hs-server patch`: the capture as a few guarded lines in SGLang's deepseek_v2.py, for versions without plugins."""
