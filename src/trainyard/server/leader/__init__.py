"""The leader: the one server that decides and acts. The only code that changes the state of jobs."""
