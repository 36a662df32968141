"""The network as data, and how it is measured: links, hosts, racks, probes, groups, rank order."""
