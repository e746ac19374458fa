"""Making machines: what is asked for, where it can be had, and what each machine boots with."""
