"""A driver: waits until the cluster has as many nodes as it was told, runs a task on each, and says in whose processes.

usage: ray_tasks.py NODES [FILE]; with a file, it waits for it at the end, so that something can happen meanwhile.
"""

import os
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
def square(number):
    """A task of its own, somewhere."""
    return os.environ["TRAINYARD_TASK"], number * number


wanted = int(sys.argv[1])
while len(nodes := [node for node in ray.nodes() if node["Alive"]]) < wanted:
    time.sleep(0.1)
print("nodes", len(nodes), "cpus", int(sum(node["Resources"].get("CPU", 0) for node in nodes)), flush=True)
asked = [
    square.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
        number
    )
    for number, node in enumerate(sorted(nodes, key=lambda node: node["NodeID"]), 1)
]
found = ray.get(asked)
for task, _ in sorted(found):
    print("ran in", task, flush=True)
print("sum", sum(result for _, result in found), flush=True)
for path in sys.argv[2:]:
    while not os.path.exists(path):
        time.sleep(0.1)
    print("went on", flush=True)
