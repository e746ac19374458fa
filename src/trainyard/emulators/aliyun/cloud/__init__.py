"""What exists in the emulated cloud, what it costs, and what becomes of it as time passes."""
