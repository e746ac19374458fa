"""The Alibaba Cloud backend. The vendor's terms (instance, zone, vSwitch) stay inside this package."""
