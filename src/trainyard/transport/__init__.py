"""Ways to one machine. Everything above this package is written once, for any of them."""
