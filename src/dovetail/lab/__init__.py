"""A cluster in a box: hosts as network namespaces, links with a rate, racks with an uplink."""

from dovetail.lab.box import INTERFACE, Lab, available
from dovetail.lab.hosts import Hosts, Loopback
from dovetail.lab.keeper import LabError
from dovetail.lab.measure import busy, measure_rate
from dovetail.lab.run import environment, hub_addresses, start_hubs
from dovetail.lab.watch import Watch, link_spans

__all__ = [
    "INTERFACE", "Hosts", "Lab", "LabError", "Loopback", "Watch", "available", "busy", "environment",
    "hub_addresses", "link_spans", "measure_rate", "start_hubs",
]  # fmt: skip
