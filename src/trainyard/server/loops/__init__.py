"""What acts: the leader's conductor and what it hands work to. Requests write intent; only this changes `state`."""
