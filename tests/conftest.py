"""What every test needs: transformers must be importable beside a CPU build of torch."""

from __future__ import annotations

from hs_server.cpu_profile import torchvision_schemas

torchvision_schemas.install()
