"""Plugin mode: three hooks on SGLang, outside of every captured CUDA graph.

* AFTER ``ModelRunner.load_model``: start the capture.
* AROUND ``TpModelWorker.forward_batch_generation``: the batch with its requests; plan before it, copy after it.
* AROUND ``LogitsProcessor.forward``: post-norm and auxiliary states of all tokens, kept while armed.

Under a prefill graph the inner model is replayed, but the outer forward, the logits processor and the worker run as
Python, so none of these hooks can be swallowed by a replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hs_server.capture.errors import CaptureRefused
from hs_server.capture.late_hooks import LateHooks
from hs_server.capture.mode import PLUGIN, claim
from hs_server.capture.session import CaptureSession
from hs_server.capture.settings import CaptureSettings
from hs_server.capture.start import start_capture

__all__ = ["TARGETS", "Hooks", "register", "register_late"]

logger = logging.getLogger(__name__)

_LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_FORWARD_BATCH = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
_LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor.forward"
TARGETS = (_LOAD_MODEL, _FORWARD_BATCH, _LOGITS)


class Hooks:
    """The hooks and the session they feed. One instance a process."""

    def __init__(self, settings: CaptureSettings) -> None:
        self.settings = settings
        self.applied: set[str] = set()
        self._session: CaptureSession | None = None

    def adopt(self, session: CaptureSession) -> None:
        """From here on batches go to `session`."""
        self._session = session

    def after_load_model(self, result: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Start the capture for the target model; a refusal ends the process, and with it the launch."""
        del args, kwargs
        if getattr(runner, "is_draft_worker", False) or self._session is not None:
            return result
        try:
            self._check_applied()
            self.adopt(start_capture(runner, self.settings))
        except CaptureRefused:
            raise
        except Exception as error:
            raise CaptureRefused(f"start-up failed: {error!r}") from error
        return result

    def around_forward_batch(
        self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Plan, run, copy. Only plain prefill batches are looked at."""
        session = self._session
        if session is None or batch is None or batch.forward_mode.name != "EXTEND":
            return original(worker, batch, *args, **kwargs)
        try:
            session.plan(batch)
        except Exception:
            logger.exception("hs-extract: a prefill batch could not be planned; its requests will be missing")
            session.disarm()
        if not session.armed:
            return original(worker, batch, *args, **kwargs)
        try:
            result = original(worker, batch, *args, **kwargs)
        except BaseException as error:
            session.abandon(error)
            raise
        session.finish(graph_replay=bool(getattr(result, "can_run_cuda_graph", False)))
        return result

    def around_logits(
        self,
        original: Callable[..., Any],
        processor: Any,
        input_ids: Any,
        hidden_states: Any,
        lm_head: Any,
        logits_metadata: Any,
        aux_hidden_states: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Keep the states of an armed forward pass. The signature is that of SGLang 0.5.9 to 0.5.23."""
        self.observe(hidden_states, aux_hidden_states)
        return original(
            processor, input_ids, hidden_states, lm_head, logits_metadata, aux_hidden_states, *args, **kwargs
        )

    def observe(self, last: Any, aux: Any) -> None:
        """Keep what the model hands to its logits processor, if the forward pass has rows of ours."""
        session = self._session
        if session is not None and session.armed:
            session.observe(last, aux)

    def _check_applied(self) -> None:
        """SGLang logs a hook it cannot apply and goes on; half a capture is worse than none."""
        missing = [target for target in TARGETS if target not in self.applied]
        if missing:
            raise CaptureRefused(f"this SGLang version has no {', '.join(missing)} to hook")


def register() -> None:
    """Register the hooks with SGLang's registry, which applies them when all plugins have run; not in source mode."""
    hooks = _claimed_hooks()
    if hooks is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks.applied = HookRegistry._patched  # noqa: SLF001  # there is no public view of it
    HookRegistry.register(_LOAD_MODEL, hooks.after_load_model, HookType.AFTER)
    HookRegistry.register(_FORWARD_BATCH, hooks.around_forward_batch, HookType.AROUND)
    HookRegistry.register(_LOGITS, hooks.around_logits, HookType.AROUND)


def register_late() -> None:
    """`register` for SGLang before 0.5.11, before any of its modules is imported.

    Raises:
        CaptureRefused: the environment names an impossible capture.
        RuntimeError: it is too late.
    """
    hooks = _claimed_hooks()
    if hooks is None:
        return
    late = LateHooks()
    late.after(_LOAD_MODEL, hooks.after_load_model)
    late.around(_FORWARD_BATCH, hooks.around_forward_batch)
    late.around(_LOGITS, hooks.around_logits)
    hooks.applied = late.applied
    late.install()


def _claimed_hooks() -> Hooks | None:
    """Hooks that nothing calls yet; None in source mode."""
    try:
        return Hooks(CaptureSettings.from_environment()) if claim(PLUGIN) else None
    except CaptureRefused as error:
        logger.error("%s", error)  # noqa: TRY400  # SGLang logs the traceback
        raise
