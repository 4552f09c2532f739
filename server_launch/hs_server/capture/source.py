"""Source mode: what the lines call that `hs-server patch` puts into SGLang's deepseek_v2.py.

They tell when the model is built and what it hands to its logits processor. Whose rows those are, only the batch knows
that the worker is called with; so the worker's method is wrapped from here, when the model is built, by the same hook
that the plugin registers. Everything else is the plugin's code too.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
from pathlib import Path
from typing import Any

from hs_server.capture.errors import CaptureRefused
from hs_server.capture.families import source_architectures
from hs_server.capture.hooks import Hooks
from hs_server.capture.mode import SOURCE, Way, claim
from hs_server.capture.settings import CaptureSettings
from hs_server.capture.start import start_capture
from hs_server.patch.source import PatchError, inspect_patch

__all__ = ["SourceCapture", "attach"]

logger = logging.getLogger(__name__)


def attach(file: str, version: int, sha256: str) -> SourceCapture | None:
    """Called when a patched file is imported with ``SGLANG_HS_DUMP_DIR`` set; None where the plugin captures.

    Args:
        file: the file, as its module names it.
        version: of the patch, as the running bytecode has it.
        sha256: of the file without the patch, likewise.
    """
    try:
        return SourceCapture(Path(file).absolute(), version, sha256) if claim(SOURCE) else None
    except CaptureRefused as error:
        # SGLang skips a model file that cannot be imported; the error would be lost among the warnings.
        logger.error("%s", error)  # noqa: TRY400
        raise


class SourceCapture:
    """The capture of a process whose deepseek_v2.py is patched. One instance a process."""

    def __init__(self, file: Path, version: int, sha256: str) -> None:
        self._file = file
        self._compiled = (version, sha256)
        self._hooks: Hooks | None = None
        self._runner: Any = None

    def set_up(self, inner: Any) -> None:
        """Called in the constructor of the inner model: find out who builds it.

        Raises:
            CaptureRefused: the capture cannot start.
        """
        del inner
        self._runner = None
        runner = _loading_runner()
        if not getattr(runner, "is_draft_worker", False) and self._hooks is None:
            self._runner = runner

    def start(self, causal: Any) -> bool:
        """Called in the constructor of the CausalLM: start the capture; whether the model is to hand out its states.

        Raises:
            CaptureRefused: states would be wrong or missing.
        """
        runner, self._runner = self._runner, None
        if runner is None:
            return False
        architectures = list(getattr(runner.model_config.hf_config, "architectures", None) or [])
        if not source_architectures().issuperset(architectures):
            raise CaptureRefused(
                f"{', '.join(architectures)} uses the patched file in a way that is not known; "
                "launch with --capture-mode plugin"
            )
        try:
            way = Way(SOURCE, str(self._file), _checked_sha256(self._file, self._compiled))
            hooks = Hooks(CaptureSettings.from_environment())
            hooks.adopt(start_capture(runner, hooks.settings, model=causal, way=way))
            _wrap_worker(hooks)
        except CaptureRefused:
            raise
        except Exception as error:
            raise CaptureRefused(f"start-up failed: {error!r}") from error
        self._hooks = hooks
        return True

    def observe(self, last: Any, aux: Any) -> None:
        """Called in the CausalLM's forward with the post-norm states [T, H] and the auxiliary ones."""
        if self._hooks is not None:
            self._hooks.observe(last, aux)


def _loading_runner() -> Any:
    """The ``ModelRunner`` in whose ``load_model`` the model is being built, some frames up from its constructor.

    Raises:
        CaptureRefused: there is none.
    """
    from sglang.srt.model_executor.model_runner import ModelRunner

    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "load_model" and isinstance(owner, ModelRunner):
            return owner
        frame = frame.f_back
    raise CaptureRefused(
        "source mode finds no ModelRunner.load_model above the model's constructor; launch with --capture-mode plugin"
    )


def _checked_sha256(file: Path, compiled: tuple[int, str]) -> str:
    """The hash of `file`, if the running bytecode was made from it.

    Raises:
        CaptureRefused: it was not, or the file is damaged.
    """
    data = file.read_bytes()
    try:
        found = inspect_patch(data.decode())
    except (PatchError, UnicodeDecodeError) as error:
        raise CaptureRefused(f"{file}: {error}; hs-server patch --check says more") from None
    if found is None or (found.version, found.sha256_without) != compiled:
        raise CaptureRefused(f"the bytecode that runs was not made from {file} as it is; run hs-server patch again")
    if found.damage:
        raise CaptureRefused(f"{file}: {found.damage}; hs-server patch --check says more")
    return hashlib.sha256(data).hexdigest()


def _wrap_worker(hooks: Hooks) -> None:
    from sglang.srt.managers.tp_worker import TpModelWorker

    original: Any = TpModelWorker.forward_batch_generation

    @functools.wraps(original)
    def forward_batch_generation(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return hooks.around_forward_batch(original, worker, batch, *args, **kwargs)

    owner: Any = TpModelWorker
    owner.forward_batch_generation = forward_batch_generation
