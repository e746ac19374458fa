"""Measurements against rivals and limits, side by side in one run: `python -m benchmarks`, or `make bench`.

No test: a loaded machine makes them slow, not wrong. The last run that counts is written up in docs/benchmarks.md.
"""
