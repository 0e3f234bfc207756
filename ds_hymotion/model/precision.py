"""fp16 without NaN."""

from __future__ import annotations

import torch


def accumulate_in_fp32() -> None:
    """Make this process's CUDA matrix products of 16-bit weights accumulate in fp32.

    With fp16 accumulation the second MLP product of the released network overflows from t ≈ 0.335 on. Call it once
    where a run or a sampler starts; without CUDA it changes nothing.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    if hasattr(matmul, "allow_fp16_accumulation"):
        matmul.allow_fp16_accumulation = False
