"""Calls to Alibaba Cloud: who asks, where, how values look, what goes wrong, and when to try again."""
