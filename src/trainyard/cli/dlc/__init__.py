"""The `dlc` command, as users of PAI-DLC know it: its words, its files, its tables, over the platform's compatible REST."""
