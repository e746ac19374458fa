"""Commands for the platform's jobs, and for the sources that jobs are made from."""
