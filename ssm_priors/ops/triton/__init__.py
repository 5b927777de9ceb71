"""The chunked form of a diagonal SSM, and its kernel, as Triton kernels for a GPU.

Float32, and bfloat16 inputs; float64 stays with torch's operations. `kernels.py` has what runs on the GPU, `launch.py`
what calls it; both need Triton, and are imported only where tensors are on a GPU and `lacking` says nothing.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch


def lacking() -> str | None:
    """Why the kernels cannot run here; None where they can."""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install 'ssm-priors[triton]'"
    return None
