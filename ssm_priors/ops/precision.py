"""Kernels, states and FFTs keep the precision they were given, whatever the surroundings cast to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for the halves of an autograd function: autocast is off inside, on the device of its first tensor."""

    @functools.wraps(function)
    def exact(ctx: Any, tensor: Tensor, *rest: Any) -> Any:
        with torch.autocast(tensor.device.type, enabled=False):
            return function(ctx, tensor, *rest)

    return exact
