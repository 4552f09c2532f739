"""What every test needs: transformers importable beside a CPU build of torch, no deadlines on a busy machine."""

from __future__ import annotations

from hypothesis import settings

from hs_server.cpu_profile import torchvision_schemas

torchvision_schemas.install()

settings.register_profile("hs", deadline=None)
settings.load_profile("hs")
