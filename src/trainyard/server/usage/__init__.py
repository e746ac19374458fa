"""What jobs and nodes use, as figures over time, and what that costs."""
