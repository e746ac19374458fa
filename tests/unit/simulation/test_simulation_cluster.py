"""Clusters as TOML: what is read, what is refused and with which words."""

from __future__ import annotations

from importlib.resources import files

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.scheduling.model import ASCEND_910, Spread, Strategy, Taint
from trainyard.scheduling.policies import POLICIES
from trainyard.simulation.cluster import parse_cluster

NODES = '[[nodes]]\ncount = 4\ncpus = 32\nmemory = "256GiB"\ndevices = { A100 = 8 }\n'


def read(text):
    return parse_cluster(text, POLICIES)


def test_nodes_are_made_by_count_and_shape():
    cluster = read(
        f'name = "lab"\n{NODES}reserved_cpus = 2\nlabels = {{ disk = "ssd" }}\ntaints = [{{ key = "big" }}]\n'
    )
    assert [node.name for node in cluster.nodes] == ["n-1", "n-2", "n-3", "n-4"]
    first = cluster.nodes[0]
    assert (first.cpu, first.memory, first.devices) == (32000, 262144, {"A100": 8})
    assert (first.reserved_cpu, first.labels, first.taints) == (2000, {"disk": "ssd"}, (Taint("big"),))
    assert (cluster.name, cluster.devices, cluster.node_devices, cluster.device_types) == (
        "lab",
        32,
        8,
        ("A100",),
    )


def test_neighbours_share_a_switch_when_racks_are_given():
    cluster = read(NODES.replace("count = 4", "count = 8\nracks = 2\nswitches = 2"))
    assert [node.topology for node in cluster.nodes] == [
        (f"n-rack-{rack}", f"n-rack-{rack}-switch-{switch}")
        for rack in (1, 2)
        for switch in (1, 2)
        for _ in range(2)
    ]


@pytest.mark.parametrize("count", [5, 7, 10, 31])
def test_every_rack_and_switch_has_nodes_when_they_do_not_divide_evenly(count):
    cluster = read(NODES.replace("count = 4", f"count = {count}\nracks = 3\nswitches = 2"))
    racks = {node.topology[0] for node in cluster.nodes}
    switches = {node.topology[1] for node in cluster.nodes}
    assert len(racks) == 3
    assert 3 <= len(switches) <= 6


def test_pools_promise_nodes_when_they_can_grow():
    cluster = read(
        f'{NODES}[[pools]]\nname = "cloud"\nspread = "spread"\nlimit = 8\nprice = 12.5\ndelay = "2m"\n'
        "node = { cpus = 16, devices = { A100 = 4 } }\n"
    )
    (pool,) = cluster.pools
    assert (pool.limit, pool.price, pool.spread) == (8, 12.5, Spread.SPREAD)
    assert pool.promise is not None
    assert (pool.promise.pool, pool.promise.devices) == ("cloud", {"A100": 4})
    assert cluster.growth["cloud"].delay == 120


def test_quotas_are_a_tree_of_groups_and_workspaces():
    cluster = read(
        f'{NODES}[[quotas]]\nname = "all"\nnominal = {{ A100 = 32, cpu = 64, memory = "1TiB" }}\n'
        '[[workspaces]]\nname = "a"\nparent = "all"\nper_user = { A100 = 4 }\nusers = { ada = { A100 = 16 } }\n'
        'weight = 2\nstrategy = "strict-fifo"\nshare = 3\n'
    )
    group, space = cluster.quotas
    assert group.nominal == {"A100": 32, "cpu": 64000, "memory": 1048576}
    assert (space.parent, space.per_user, space.users) == ("all", {"A100": 4}, {"ada": {"A100": 16}})
    assert (space.weight, space.strategy, cluster.workspaces) == (2.0, Strategy.STRICT_FIFO, {"a": 3.0})


def test_policies_of_ones_own_are_based_on_shipped_ones():
    cluster = read(
        f'{NODES}[policies.default]\nageing = "2h"\n[policies.eager]\nbase = "easy"\nreservations = 4\npreemption = false\n'
    )
    assert cluster.policies["default"].ageing == 7200
    eager = cluster.policies["eager"]
    assert (eager.name, eager.one_line, eager.reservations, eager.preemption) == ("eager", True, 4, False)


def test_rules_for_devices_have_names_or_figures():
    cluster = read(f'{NODES}[devices.NPU]\nrule = "ascend-910"\n[devices.X]\nring = 2\nsizes = [1, 2]\n')
    assert cluster.device_rules["NPU"] == ASCEND_910
    assert (cluster.device_rules["X"].ring, cluster.device_rules["X"].sizes) == (2, (1, 2))


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("", "no nodes", "[[nodes]]"),
        ("[[nodes]\n", "is not TOML", "Correct"),
        (NODES + "cpuss = 3\n", "line 6: nodes[1].cpuss means nothing", "'cpus'"),
        (NODES + "[[noodles]]\n", "line 6: noodles means nothing", "'nodes'"),
        (NODES + 'reserved_memory = "much"\n', "line 6: nodes[1].reserved_memory is 'much'", "64GiB"),
        (NODES.replace("4", "-4"), "line 2: nodes[1].count is -4", "whole number"),
        (NODES.replace("4", '"4"'), "line 2", "whole number"),
        (NODES.replace("{ A100 = 8 }", "8"), "nodes[1].devices is 8", "A100 = 8"),
        (NODES.replace("{ A100 = 8 }", "{ A100 = true }"), "nodes[1].devices.A100", "whole number"),
        (NODES + '[[pools]]\nname = "p"\nspread = "pakc"\n', "pools[1].spread is 'pakc'", "'pack'"),
        (NODES + "[[workspaces]]\nweight = 1\n", "workspaces[1] has no name", "Add name"),
        (
            NODES + '[[workspaces]]\nname = "a"\nparent = "al"\n[[quotas]]\nname = "all"\n',
            "'al' of 'a'",
            "'all'",
        ),
        (
            NODES + '[[quotas]]\nname = "a"\nparent = "b"\n[[quotas]]\nname = "b"\nparent = "a"\n',
            "ancestor",
            "ring",
        ),
        (NODES + '[[quotas]]\nname = "a"\n[[workspaces]]\nname = "a"\n', "two quotas 'a'", "its own"),
        (NODES + '[policies.x]\nbase = "magic"\n', "policies.x.base is 'magic'", "fifo"),
        (NODES + '[policies.x]\nageing = "long"\n', "policies.x.ageing is 'long'", "2h"),
        (NODES + "[policies.x]\nreservation = 2\n", "policies.x.reservation means nothing", "'reservations'"),
        (NODES + '[devices.X]\nrule = "ascend"\n', "devices.X.rule is 'ascend'", "ascend-910"),
        (NODES + "[losses]\nevery = -1\n", "losses.every is -1", "1d"),
        (NODES + '[[nodes]]\nname = "n"\n' + '[[nodes]]\nname = "n"\n', "second node 'n'", "another name"),
        ('[nodes]\nname = "a"\n', "nodes is not a list of tables", "[[nodes]]"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_when_a_file_is_refused(text, words, hint):
    with pytest.raises(InvalidError) as caught:
        read(text)
    assert words in caught.value.message
    assert "cluster.toml" in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(("name", "devices"), [("small", 256), ("medium", 512), ("large", 2048)])
def test_the_shipped_clusters_can_be_read(name, devices):
    text = (files("trainyard.simulation") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    cluster = read(text)
    assert (cluster.name, cluster.devices) == (name, devices)
    assert all(len(node.topology) == 2 for node in cluster.nodes)
