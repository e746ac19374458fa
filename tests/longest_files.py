"""Which files of tests begin first: at the end a long one would keep one core busy while the other waits.

They take half a minute or more where they are run on two cores, `pytest --durations=0` tells; the longest is the first.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "test_doc_examples",
    "test_crashes",
    "test_other_kernel",
    "test_lying_node",
    "test_cli_platform",
    "test_pools_emulated",
    "test_aliyun_self_stop",
    "test_relay_attacks",
    "test_upload",
    "test_cloud_host_keys",
    "test_gang_barrier",
    "test_strangers",
    "test_real_identity_provider",
    "test_blocks",
    "test_task_containers",
    "test_scripts_through_the_queue",
    "test_aliyun_network",
    "test_hostile_task_folder",
    "test_server_full_disk",
    "test_node_full_disk",
    "test_gangs_across",
    "test_seeds",
    "test_reconciler",
    "test_containers",
    "test_disk_limits",
    "test_copy_faults",
    "test_download",
    "test_faults",
    "test_clock_jumps",
    "test_any_server",
    "test_aliyun_chaos",
    "test_escapes",
    "test_cli_planning",
    "test_aliyun_interrupted",
    "test_rest_schemathesis",
    "test_replayed_requests",
    "test_secret_canaries",
    "test_hosts",
    "test_aliyun_secrets",
    "test_commands",
    "test_session_faults",
)


def begin_with_them(items: list[pytest.Item]) -> None:
    """The longest files first; the others stay in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))
