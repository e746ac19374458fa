"""What a task may see and do on its node: its view, its user, its limits, the calls it is denied."""
