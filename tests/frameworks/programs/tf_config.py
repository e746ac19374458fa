"""TensorFlow: what its own client reads in TF_CONFIG."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
spec = resolver.cluster_spec().as_dict()
shape = {role: len(addresses) for role, addresses in sorted(spec.items())}
print(f"{resolver.task_type} {resolver.task_id} of {shape} master={resolver.master()!r}", flush=True)
