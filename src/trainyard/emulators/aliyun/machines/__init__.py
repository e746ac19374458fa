"""The emulator's machines: each instance is a real sshd with its own files, processes and addresses.

`Machines` is all that others call; how far machines are kept apart is told in `isolation.py`.
"""

from trainyard.emulators.aliyun.machines.execution import Execution
from trainyard.emulators.aliyun.machines.fleet import Machines
from trainyard.emulators.aliyun.machines.isolation import Isolation

__all__ = ["Execution", "Isolation", "Machines"]
