"""A worker that takes part in two sums, the second of them without worker 1.

  python -m tests.cluster.summing_worker WHOSE SIZE DTYPE HEARTBEAT_MILLISECONDS

It says that it has the first sum. The test kills worker 1 then, because a worker that
ended by itself could take parts of the first sum with it that others have not read yet.
The others wait until it is gone, and print the error of their own second sum. All stay
until the test kills them: worker 0 leads the coordination service, and its end would
abort the others. WHOSE is "ours" for the project's sums and "theirs" for TensorFlow's.
"""

import json
import os
import signal
import sys
import time

import tensorflow as tf
from tensorflow.python.eager import context

from strategies.cluster.probes import is_listening
from strategies.inner_loop.all_reduce import sum_by_type

whose, size, dtype, heartbeat_milliseconds = sys.argv[1:]
cluster = json.loads(os.environ["TF_CONFIG"])
context.context().configure_coordination_service(
    service_type="standalone",
    service_leader="/job:worker/replica:0/task:0",
    heartbeat_timeout_in_ms=int(heartbeat_milliseconds),
)
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def on_each_replica() -> tf.Tensor:
    replica = tf.distribute.get_replica_context()
    value = tf.ones([int(size)], dtype)
    if whose == "theirs":
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)
    return sum_by_type(replica, [value])[0]


@tf.function(autograph=False)
def run() -> tf.Tensor:
    return strategy.run(on_each_replica)


total = strategy.experimental_local_results(run())[0].numpy().tolist()
assert total == [strategy.num_replicas_in_sync] * int(size), total
print("summed", flush=True)
if cluster["task"]["index"] == 1:
    signal.pause()
while is_listening(cluster["cluster"]["worker"][1]):
    time.sleep(0.05)
try:
    run()
except tf.errors.OpError as error:
    print(repr(str(error)), flush=True)
signal.pause()
