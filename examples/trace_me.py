"""What `dovetail trace` needs of your model: a function that returns it, one batch, and the loss.

Run: dovetail trace examples/trace_me.py:make -o profile.json

Inputs are a tuple (passed by position), a dict (passed by keyword) or one tensor. The loss is a function of
the model's output that returns one number; leave it out when the model's output holds its loss already, as
Hugging Face models given `labels` do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def make() -> tuple[nn.Module, tuple[Tensor], Callable[[Tensor], Tensor]]:
    """A small convolutional network, a batch of 16 images, and cross entropy against fixed labels."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 16 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    images = torch.randn(16, 3, 32, 32)
    labels = torch.randint(10, (16,))
    return model, (images,), lambda output: functional.cross_entropy(output, labels)
