"""Everything that lets an unmodified SGLang run on a CPU without AMX kernels; used by the `cpu` profile only.

SGLang's CPU path needs four things that the package index cannot give for a plain CPU: `sgl_kernel` (its wheels need
CUDA), a `torchvision` that imports beside a CPU build of torch, `triton` (imported everywhere for its decorators), and
a right choice of attention path for MLA models. Each is a small stand-in here; none fakes a number. Where they are
not needed (a CUDA build of torch, a real triton) they step aside.

- `settings`: the argv and the environment of the profile.
- `model_files`: which of SGLang's model files may stay unimported.
- `on_pythonpath/`: put first on PYTHONPATH; its `sitecustomize` runs in every process of the server.
- `torchvision_schemas`: also called by tests and examples, since transformers imports torchvision.
- `triton_mock`, `plugin`: see there.
"""

from __future__ import annotations
