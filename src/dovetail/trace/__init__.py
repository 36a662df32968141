"""A model becomes a Profile: ops, times, who reads which parameter, who completes which gradient."""
