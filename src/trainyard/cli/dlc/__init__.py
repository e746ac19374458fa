"""The `dlc` command with the syntax, files and tables of PAI-DLC, over the platform's compatible REST API."""
