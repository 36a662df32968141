"""The types that the engine sums, by torch's names."""

from __future__ import annotations

import torch

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
