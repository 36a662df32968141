"""Hugging Face's Trainer on dovetail: `DovetailTrainer` in place of `Trainer`."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import Trainer, TrainerCallback

from dovetail.training.distribute import distribute, no_sync, shutdown


class DovetailTrainer(Trainer):
    """As `Trainer`, but gradients travel by dovetail; `dovetail` holds keyword arguments of `dovetail.distribute`."""

    def __init__(self, *args: Any, dovetail: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_Distribute(dovetail or {}))

    def create_accelerator_and_postprocess(self) -> None:
        """Accelerate places the model and casts it, but does not wrap it in DDP."""
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)


class _Distribute(TrainerCallback):
    """Between the Trainer's own preparations and its loop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model, optimizer = given["model"], given["optimizer"]
        distribute(model, getattr(optimizer, "optimizer", optimizer), **self._options)
        model.no_sync = partial(no_sync, model)  # where Accelerate looks for it when gradients accumulate

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model = given["model"]
        del model.no_sync
        shutdown(model)
