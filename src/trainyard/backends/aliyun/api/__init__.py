"""Calls to Alibaba Cloud: credentials, endpoints, the format of values, errors and retries."""
