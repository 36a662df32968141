"""A cluster in a box: hosts as network namespaces, links with a rate, racks with an uplink."""

from dovetail.lab.box import INTERFACE, Lab, available
from dovetail.lab.keeper import LabError
from dovetail.lab.measure import measure_rate
from dovetail.lab.run import HUB_PORT, MASTER_PORT, environment, hub_addresses, start_hubs

__all__ = [
    "HUB_PORT", "INTERFACE", "MASTER_PORT", "Lab", "LabError", "available", "environment", "hub_addresses",
    "measure_rate", "start_hubs",
]  # fmt: skip
