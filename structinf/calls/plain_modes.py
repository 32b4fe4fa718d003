"""The autograd and autocast modes in which oracles run."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from ..deferred_checks import DeferredChecks
from ..errors import InstanceError

__all__ = ["PlainModes"]


class PlainModes:
    """The context of ``Problem.plain_modes``; a class, because generators take several times longer."""

    def __init__(
        self, device_type: str, batch_shape: torch.Size, checks: DeferredChecks | None, defers_checks: bool
    ) -> None:
        self.device_type, self.batch_shape = device_type, batch_shape
        self.checks, self.defers_checks = checks, defers_checks
        self.modes: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        has_autocast, has_inference = torch.is_autocast_enabled(self.device_type), torch.is_inference_mode_enabled()
        if self.checks is not None:
            self.token = self.checks.start(defers=self.defers_checks)
        if has_autocast or has_inference:
            self.modes = contextlib.ExitStack()
        if self.modes is not None and has_autocast:
            self.modes.enter_context(torch.autocast(self.device_type, enabled=False))
        if self.modes is not None and has_inference:
            self.modes.enter_context(torch.inference_mode(False))
            self.modes.enter_context(torch.no_grad())

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self.modes is not None:
            self.modes.close()
        if self.checks is not None:
            try:
                self.checks.stop(self.token, error)
            except InstanceError as found:
                found.add_batch_position(self.batch_shape)
                raise
        if isinstance(error, InstanceError):
            error.add_batch_position(self.batch_shape)
