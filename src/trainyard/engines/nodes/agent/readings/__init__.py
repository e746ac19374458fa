"""What tasks and the node use: processors, memory, disk, devices."""
