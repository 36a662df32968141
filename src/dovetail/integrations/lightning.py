"""A Lightning strategy: `Trainer(strategy=DovetailStrategy())`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import LBFGS, Optimizer

from dovetail.training.distribute import distribute, no_sync, shutdown


class DovetailStrategy(DDPStrategy):
    """As DDP's strategy, but gradients travel by dovetail; keyword arguments are those of `dovetail.distribute`."""

    strategy_name = "dovetail"

    def __init__(self, **options: Any) -> None:
        super().__init__(process_group_backend="gloo")
        self._options = options
        self._running = False

    def configure_ddp(self) -> None:
        """The module stays as it is."""

    def setup(self, trainer: Trainer) -> None:
        """After Lightning has set up model and optimizers, dovetail takes over their communication."""
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            for optimizer in self.optimizers:
                distribute(self.model, optimizer, **self._options)
            self._running = True

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The step as a call of the module: what hangs before its forward pass (buffers from rank 0) happens."""
        module = self.lightning_module

        def once(*inner: Any, **named: Any) -> Any:
            del module.forward  # the class's own again, for the step itself
            return module.training_step(*inner, **named)

        module.forward = once
        with self.precision_plugin.train_step_context():
            return module(*args, **kwargs)

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any | None = None, **kwargs: Any
    ) -> Any:
        """Forward and backward first, then a step that does not wait; a closure inside the step would have to."""
        plugin = self.precision_plugin
        # LBFGS calls its closure several times; with a scaler Lightning itself runs the closure before the step.
        if isinstance(optimizer, LBFGS) or getattr(plugin, "scaler", None) is not None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        result = plugin._wrap_closure(model or self.lightning_module, optimizer, closure)  # with hooks and clipping
        optimizer.step(**kwargs)
        return result

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gradients accumulate here until the last batch of a step."""
        with no_sync(self.model):
            yield

    def teardown(self) -> None:
        """Finish what is on its way before Lightning takes the model apart."""
        with ExitStack() as stack:
            stack.callback(super().teardown)
            if self._running:
                self._running = False
                shutdown(self.model)
