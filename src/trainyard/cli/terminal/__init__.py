"""Terminal input and output: printing, live screens, tables, keys and interrupts."""
