"""A model becomes a Profile: ops, times, who reads which parameter, who completes which gradient."""

from dovetail.calls import make_callable

make_callable(__name__, "dovetail.trace.record:trace")
