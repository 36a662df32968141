"""What a plan would bring: the same plan as the engine's, the same kind of timeline, in simulated time."""

from dovetail.calls import make_callable

make_callable(__name__, "dovetail.simulate.run:simulate")
