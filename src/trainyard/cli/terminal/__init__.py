"""The terminal: everything that is printed, live screens, tables, keys and interrupts."""
