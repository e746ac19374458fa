"""Machines of Alibaba Cloud. The vendor's words (instance, zone, vSwitch) stay behind this door."""
