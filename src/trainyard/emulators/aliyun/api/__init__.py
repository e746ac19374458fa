"""The way of a call: from HTTP to the action and back, as the cloud's gateway takes, checks, refuses and answers."""
