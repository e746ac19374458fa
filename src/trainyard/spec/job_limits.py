"""How much, how many and how long a job may ask for, and what its names look like. Numbers and patterns only."""

from __future__ import annotations

import re

DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}\Z")
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/ -]{0,62}\Z")
# A name in a registry or on the node; whether there is one, the node will say. NB: podman takes `docker-archive:/path`,
# `dir:path` and their like for files of the node, which it opens with its own rights: a colon stands before a port or a tag only.
IMAGE = re.compile(
    r"(?!(?:containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):)"
    r"(?:[A-Za-z0-9][A-Za-z0-9_.-]*:[0-9]{1,5}/)?[A-Za-z0-9][A-Za-z0-9_.+/-]*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.+-]*)?(?:@[A-Za-z0-9_.+-]+:[0-9a-fA-F]+)?\Z"
)

NAME_LENGTH = 200
IMAGE_LENGTH = 500
# What one argument of a program may have on Linux is 128 KiB; a command and its variables stay below.
COMMAND_BYTES = 100_000
VARIABLES_BYTES = 100_000
ROLES = 16
REPLICAS = 4096  # of all roles together
DEVICES = 1024  # of one replica
CORES = 65_536
MEMORY_MIB = 1 << 30
DISK_MIB = 1 << 30
SECONDS = 10 * 366 * 86400
GRACE_SECONDS = 24 * 3600
RETAIN_SECONDS = 90 * 86400
RETRIES = 1000
TAGS = 64
LOWEST_PRIORITY, HIGHEST_PRIORITY = 1, 9
