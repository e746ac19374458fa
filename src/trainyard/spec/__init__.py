"""Pure data: what users ask for and what machines are. No I/O here, and no import but `lib`."""
