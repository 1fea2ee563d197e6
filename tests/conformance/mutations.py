"""Breaks the code on purpose, and shows which tests of the suite notice.

  python -m tests.conformance.mutations                   # all, 20 minutes
  python -m tests.conformance.mutations --record          # and keep the results
  python -m tests.conformance.mutations --only=tower,dropout

Each mutation is applied to a copy of the tracked files, in which its tests run up to
the first failure, and the test that failed runs in a copy without the mutation. The
command ends with 1 if a mutation was not noticed.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from tests import processes

SAME_TRAINING = "tests/conformance/test_same_training.py"
ADDED_LOSSES = "tests/conformance/test_added_losses.py"
LAYER_STATE = "tests/conformance/test_layer_state.py"
RANDOMNESS = "tests/conformance/test_randomness.py"
STEPS = "tests/conformance/test_steps.py"
OUTER = "tests/conformance/test_outer_optimizer.py"
COMPILED_LOOP = "tests/conformance/test_compiled_loop.py"
WARM_START = "tests/strategies/processes/test_warm_start.py"
ORDER = "tests/trainers/inputs/test_shuffling.py"
AS_KERAS = "tests/updates/test_as_keras.py"
TWO_REPLICAS = (
    "tests/cluster/test_clusters.py::"
    "test_two_replicas_train_the_same_in_processes_as_in_one"
)
COMPRESSION = "tests/cluster/test_gradient_compression.py"
COMPRESSED_PUSH = "tests/cluster/test_compressed_push.py"
LOST_PEER = "tests/cluster/test_lost_peer.py"
SHARDED_STATE = "tests/cluster/test_sharded_optimizer_state.py"
DRAWS = "tests/trainers/model/random_numbers/test_tensorflow_draws.py"
BUCKETS = "tests/strategies/collectives/test_buckets.py"
RESULTS = "tests/conformance/mutations.json"
# pytest ends with 1 if tests have failed; 2 and more mean that tests could not run.
_TESTS_FAILED = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Mutation:
    """A fault that changes the training that a command does.

    Attributes:
      name: Fault, in words.
      path: File that is changed.
      changes: Pairs of a text that the file has once, and its replacement.
      tests: Test file, or a test in it, that must fail.
    """

    name: str
    path: str
    changes: tuple[tuple[str, str], ...]
    tests: str = SAME_TRAINING

    def apply(self, root: pathlib.Path) -> None:
        """Changes the file below a folder.

        Raises:
          ValueError: The file does not have a text exactly once.
        """
        path = root / self.path
        content = path.read_text(encoding="utf-8")
        for old, new in self.changes:
            if content.count(old) != 1:
                raise ValueError(f"{self.path} has {content.count(old)} times: {old}")
            content = content.replace(old, new)
        path.write_text(content, encoding="utf-8")


_TRAIN_STEP = "trainers/model/train_step.py"
_STATE = "trainers/model/layer_state.py"
_ALL_REDUCE = "strategies/inner_loop/all_reduce.py"
_SHARDING = "strategies/inner_loop/sharding.py"
_UPDATE = "trainers/model/update.py"
_SHUFFLING = "trainers/inputs/shuffling.py"
_RNG = "trainers/model/random_numbers/seeds.py"
_COMPILED = "strategies/inner_loop/compiled_loop.py"
_TEMPLATE_PROCESS = "strategies/processes/template_process.py"
_LOSS_SUMS = "trainers/model/loss_sums.py"
_OPTIMIZER = "trainers/model/optimizers/build.py"
_LEARNING_RATE = "trainers/model/optimizers/learning_rate.py"
_OUTER = "strategies/local_sgd/outer_optimizer.py"
_AVERAGES = "strategies/local_sgd/averages.py"
_COMPRESSED = "strategies/gradient_compression/compressed_sum.py"
_ERRORS = "strategies/gradient_compression/error_feedback.py"
_PUSH = "strategies/ps/compressed_push.py"
_SHARDED = "strategies/collectives/sharded_update.py"
_OWN_STEPS = (
    "tests/trainers/keras_program/test_same_as_fit.py::"
    "test_a_step_of_its_own_trains_as_with_fit"
)
_CALLS = (
    "tests/trainers/keras_program/test_same_as_fit.py::"
    "test_a_call_of_fit_does_what_keras_does"
)

MUTATIONS = (
    Mutation(
        "tower averages twice",
        "strategies/tower.py",
        (("[sum_gradients(parts) for", "[sum_gradients(parts) / len(parts) for"),),
    ),
    Mutation(
        "tower leaves out a tower",
        "strategies/tower.py",
        (("zip(*tower_gradients, strict", "zip(*tower_gradients[:-1], strict"),),
    ),
    Mutation(
        "tower clips before the sum",
        "strategies/tower.py",
        (
            (
                "[tower.gradients for tower in towers]",
                "[(update.prepare(t) if update else t).gradients for t in towers]",
            ),
        ),
    ),
    Mutation(
        "mirrored does not sum",
        _ALL_REDUCE,
        (
            (
                "summed = _sum_dense_tensor(context, vector)",
                "summed = vector",
            ),
        ),
    ),
    Mutation(
        "mirrored takes the mean in place of the sum",
        _ALL_REDUCE,
        (("ReduceOp.SUM, [(value", "ReduceOp.MEAN, [(value"),),
    ),
    Mutation(
        "mean of the means of two replicas",
        _TRAIN_STEP,
        (
            (
                'share = sums["loss"] / tf.cast(batch.global_size, dtype)',
                'share = sums["loss"] / tf.cast(2 * batch.num_rows, dtype)',
            ),
        ),
    ),
    Mutation(
        "one example of each shard is left out",
        _SHARDING,
        (
            (
                "tf.maximum(stop, start + 1), stop - first",
                "tf.maximum(stop, start + 1), stop - first - 1",
            ),
        ),
    ),
    Mutation(
        "the optimizer reduces again",
        "strategies/common/private_apis/optimizers.py",
        (("optimizer._all_reduce_sum_gradients = list", "del optimizer"),),
    ),
    Mutation(
        "dropout does not depend on the replica",
        _RNG,
        (("in (batch.step, replica):", "in (batch.step,):"),),
        RANDOMNESS,
    ),
    Mutation(
        "dropout does not depend on the step",
        _RNG,
        (("in (batch.step, replica):", "in (replica,):"),),
        RANDOMNESS,
    ),
    Mutation(
        "layer state of the first replica only",
        _STATE,
        (
            (
                "return value * tf.cast(weight, value.dtype)",
                "return value * tf.cast(tf.equal(replica, 0), value.dtype)",
            ),
        ),
        LAYER_STATE,
    ),
    Mutation(
        "no spread between replicas in the moving variance",
        _STATE,
        (("= variance / (1 - layer.momentum)", "= tf.zeros_like(variance)"),),
        LAYER_STATE,
    ),
    Mutation(
        "the padding row of an empty shard counts",
        _SHARDING,
        (("rows < batch.num_rows,", "rows < tf.maximum(batch.num_rows, 1),"),),
        SAME_TRAINING,
    ),
    Mutation(
        "every replica counts the whole regularizer",
        _LOSS_SUMS,
        (
            (
                "return loss + tf.cast(batch.num_rows, loss.dtype) * added",
                "return loss + tf.cast(batch.global_size, loss.dtype) * added",
            ),
        ),
        ADDED_LOSSES,
    ),
    Mutation(
        "an update that is not finite is applied",
        "strategies/inner_loop/step.py",
        (("tf.cond(finite, apply, skip", "tf.cond(tf.constant(True), apply, skip"),),
        STEPS,
    ),
    Mutation(
        "the order depends on the shard",
        _SHUFFLING,
        (
            (
                "(tf.reshape(positions, [-1]), epoch)",
                "(tf.reshape(positions, [-1]), epoch + tf.cast(shard_index, tf.int64))",
            ),
        ),
        ORDER,
    ),
    Mutation(
        "the order is the same in every epoch",
        _SHUFFLING,
        (
            (
                "(tf.reshape(positions, [-1]), epoch)",
                "(tf.reshape(positions, [-1]), tf.zeros_like(epoch))",
            ),
        ),
        ORDER,
    ),
    Mutation(
        "index_shuffle has plain keys",
        _SHUFFLING,
        (
            (
                "for key in tf.unstack(keys):",
                "for key in [tf.stack([tf.constant(self.seed, tf.int64), epoch])]:",
            ),
        ),
        ORDER,
    ),
    Mutation(
        "every replica counts the step",
        _UPDATE,
        (("VariableAggregation.ONLY_FIRST_REPLICA", "VariableAggregation.SUM"),),
        STEPS,
    ),
    Mutation(
        "a trace for every number of steps",
        "strategies/inner_loop/loop.py",
        (
            ("signature = (_flat(signature), *_ARGUMENTS)", "signature = None"),
            ("tf.constant(num_steps, tf.int32),", "num_steps,"),
        ),
        STEPS,
    ),
    Mutation(
        "shards overlap",
        _SHARDING,
        (
            (
                "first = -((-shard_index * num_rows) // num_shards)",
                "first = (shard_index * num_rows) // num_shards",
            ),
        ),
    ),
    Mutation(
        "the compiled loop takes a step too many",
        _COMPILED,
        (("finite & (index < count)", "finite & (index <= count)"),),
        COMPILED_LOOP,
    ),
    Mutation(
        "the compiled loop begins each call with a new span",
        _COMPILED,
        (("tf.gather(rows, position + index)", "tf.gather(rows, index)"),),
        COMPILED_LOOP,
    ),
    Mutation(
        "the compiled loop goes on after a step that is not finite",
        _COMPILED,
        (("finite & (index < count)", "(index < count)"),),
        COMPILED_LOOP,
    ),
    Mutation(
        "the compiled loop applies a step that is not finite",
        _COMPILED,
        (("tf.where(finite, variable, value)", "variable"),),
        COMPILED_LOOP,
    ),
    Mutation(
        "the compiled loop describes no gradient",
        _COMPILED,
        (("results.finite, rows, results.gradients", "results.finite, rows, earlier"),),
        COMPILED_LOOP,
    ),
    Mutation(
        "auto compiles layers of any kind",
        "trainers/loop/compilable.py",
        (("type(layer) not in _DENSE_LAYERS", "False"),),
        COMPILED_LOOP,
    ),
    Mutation(
        "auto compiles activations and losses of the user",
        "trainers/loop/compilable.py",
        (("callable(value) and not _is_known(value)", "False"),),
        "tests/trainers/loop/test_compilable.py",
    ),
    Mutation(
        "a resumed run decides anew what XLA compiles",
        "trainers/reporting/reporter.py",
        (("jit_compile=parts.compilation.setting", 'jit_compile="auto"'),),
        COMPILED_LOOP,
    ),
    Mutation(
        "forked processes draw the same random numbers",
        _TEMPLATE_PROCESS,
        (("    random.seed()\n", "    random.seed(0)\n"),),
        WARM_START,
    ),
    Mutation(
        "a forked process keeps the folder of its template",
        _TEMPLATE_PROCESS,
        (("os.chdir(request.folder)", "pass"),),
        WARM_START,
    ),
    Mutation(
        "a forked process keeps the cores of its template",
        _TEMPLATE_PROCESS,
        (("if request.cores:", "if False:"),),
        WARM_START,
    ),
    Mutation(
        "a forked process is in the session of its template",
        _TEMPLATE_PROCESS,
        (("between)\n        os.setsid()", "between)"),),
        WARM_START,
    ),
    Mutation(
        "a forked process never fails",
        _TEMPLATE_PROCESS,
        (("return error.code or 0", "return 0"),),
        WARM_START,
    ),
    Mutation(
        "a template serves other variables than its own",
        "strategies/processes/template_environment.py",
        (
            (
                "for name, v in environment.items() if name not in later",
                "for name, v in {}.items() if name not in later",
            ),
        ),
        WARM_START,
    ),
    Mutation(
        "a process does not take the orphans of its template",
        "strategies/processes/parent.py",
        (("(_PR_SET_CHILD_SUBREAPER, 1)", "(_PR_SET_CHILD_SUBREAPER, 0)"),),
        WARM_START,
    ),
    # These change all strategies alike, so comparisons among strategies cannot notice
    # them.
    Mutation(
        "weight decay is doubled",
        _OPTIMIZER,
        (("config.weight_decay or None", "2 * config.weight_decay or None"),),
        AS_KERAS,
    ),
    Mutation(
        "the cosine has half of its amplitude",
        _LEARNING_RATE,
        (
            (
                "(1 + tf.cos(math.pi * progress)) / 2",
                "(3 + tf.cos(math.pi * progress)) / 4",
            ),
        ),
        AS_KERAS,
    ),
    Mutation(
        "the schedule is a step ahead",
        _LEARNING_RATE,
        (("step = tf.cast(step, tf.float32)", "step = tf.cast(step + 1, tf.float32)"),),
        AS_KERAS,
    ),
    Mutation(
        "the cosine does not know of the warm-up",
        _LEARNING_RATE,
        (("(step - warmup) / decay_steps", "step / self._train_steps"),),
        AS_KERAS,
    ),
    Mutation(
        "the second drop of the step schedule comes late",
        _LEARNING_RATE,
        (("progress < 0.75", "progress < 0.85"),),
        AS_KERAS,
    ),
    Mutation(
        "a loss without the ranks that Keras gives it",
        "trainers/user_code/unreduced.py",
        (("in_columns(self._loss.call,", "in_columns(self._loss.fn,"),),
        "tests/trainers/user_code/test_as_fit.py",
    ),
    Mutation(
        "overlapping updates replace moving averages",
        "trainers/model/overlapping_layer_state.py",
        (("            momentum=decay,\n", "            momentum=0 * decay,\n"),),
        LAYER_STATE,
    ),
    Mutation(
        "the outer gradient has the other sign",
        _OUTER,
        (("part = (anchor - weight) /", "part = (weight - anchor) /"),),
        OUTER,
    ),
    Mutation(
        "a checkpoint has no outer momentum",
        _OUTER,
        (
            (
                "for slots in self._slots.values() for slot in slots]",
                "for slots in self._slots.values() for slot in slots[:1]]",
            ),
        ),
        OUTER,
    ),
    Mutation(
        "one fragment is never averaged",
        _AVERAGES,
        (("* every // count % every for", "* every // count % (every + index) for"),),
        OUTER,
    ),
    Mutation(
        "a run that takes over other weights keeps its anchor",
        _AVERAGES,
        (
            (
                "            self._outer.restart(without_local)\n",
                "            pass\n",
            ),
        ),
        OUTER,
    ),
    Mutation(
        "the outer optimizer changes layer state",
        _AVERAGES,
        (("update.trainable_weights(),", "update.weights(),"),),
        "tests/conformance/test_parameter_averaging.py",
    ),
    Mutation(
        "gradients lose what earlier steps have not sent",
        _COMPRESSED,
        (("[gradients[index] + own[0] for", "[gradients[index] for"),),
        COMPRESSION,
    ),
    Mutation(
        "each power iteration starts from the first basis",
        "strategies/gradient_compression/powersgd.py",
        (("state=[[_orthonormal(q)] for q in rights],", "state=state,"),),
        COMPRESSION,
    ),
    Mutation(
        "a resumed worker takes over the errors of the first one",
        _ERRORS,
        (("variable.assign(kept[self._first + local])", "variable.assign(kept[0])"),),
        COMPRESSION,
    ),
    Mutation(
        "gradients for servers lose what earlier steps have not sent",
        _PUSH,
        (
            (
                "values[index] = gradients[index] + error",
                "values[index] = gradients[index]",
            ),
        ),
        COMPRESSED_PUSH,
    ),
    Mutation(
        "an attempt is computed again with the errors of the skipped one",
        _PUSH,
        (
            (
                "feedback.version), lambda: feedback.before)",
                "feedback.version), lambda: feedback.after)",
            ),
        ),
        COMPRESSED_PUSH,
    ),
    Mutation(
        "an attempt that overflowed forgets what earlier steps have not sent",
        _PUSH,
        (
            (
                "feedback.version), lambda: feedback.before)",
                "feedback.version), self._initial)",
            ),
        ),
        f"{COMPRESSED_PUSH}::test_an_overflow_leaves_nothing_behind",
    ),
    Mutation(
        "workers forget at an evaluation what they have not sent",
        _PUSH,
        (("tf.cond(is_valid, write,", "tf.cond(tf.constant(False), write,"),),
        COMPRESSED_PUSH,
    ),
    Mutation(
        "workers do not take over the chief's values",
        "strategies/collectives/chief_values.py",
        (("        if not different:\n", "        if True:\n"),),
        SHARDED_STATE,
    ),
    Mutation(
        "small sums leave some workers without a part",
        "strategies/inner_loop/grouping.py",
        (("        size += 1\n", "        break\n"),),
        LOST_PEER,
    ),
    Mutation(
        "parts of gradients are clipped by the norm of a part",
        _SHARDED,
        (("        squares = sums.pop(_SQUARES)\n", "        sums.pop(_SQUARES)\n"),),
        SHARDED_STATE,
    ),
    Mutation(
        "parts of the optimizer's state are zero in a checkpoint",
        _SHARDED,
        (("whole[index].assign(value)", "whole[index].assign(0 * value)"),),
        SHARDED_STATE,
    ),
    Mutation(
        "a resumed worker updates its slices of the first weights",
        _SHARDED,
        (("        self._read_weights()\n", ""),),
        SHARDED_STATE,
    ),
    Mutation(
        "an update without late workers is not that of a whole batch",
        "strategies/ps/sync_coordinator.py",
        (("if self._queues.has_backup_workers:", "if False:"),),
        "tests/cluster/test_backup_workers.py",
    ),
    Mutation(
        "a checkpoint's digests are of the first MiB",
        "trainers/run_dir/checkpoint_manifest.py",
        (("while piece := file.read(1 << 20):", "if piece := file.read(1 << 20):"),),
        "tests/trainers/run_dir/test_checkpoints.py",
    ),
    Mutation(
        "exit functions are not called",
        "strategies/common/native_log.py",
        (("    atexit._run_exitfuncs()\n", ""),),
        "tests/cluster/test_own_model.py",
    ),
    Mutation(
        "draws of TensorFlow have one key for all steps",
        "trainers/model/random_numbers/tensorflow_draws.py",
        (
            (
                "fold_in(step.key, tf.constant(",
                "fold_in(tf.zeros_like(step.key), tf.constant(",
            ),
        ),
        DRAWS,
    ),
    Mutation(
        "turns of a loop draw the numbers of the step",
        "trainers/model/random_numbers/tensorflow_draws.py",
        (("if step is None or step.graph is not", "if step is None or None is"),),
        DRAWS,
    ),
    Mutation(
        "workers send a loss in the type of the first gradient",
        _ALL_REDUCE,
        (("others = _widest(*types)", "others = types[0]"),),
        BUCKETS,
    ),
    Mutation(
        "losses of a step see all replicas",
        "strategies/common/private_apis/graphs.py",
        (("return 1 if in_stateless_scope() else usual", "return usual"),),
        tests=_OWN_STEPS,
    ),
    Mutation(
        "sums in the logs of a step are averaged",
        "trainers/user_code/own_step/model_step.py",
        (("value if name in self.summed else value * share", "value * share"),),
        tests=_OWN_STEPS,
    ),
    Mutation(
        "functions of a step lose AutoGraph",
        "strategies/common/private_apis/graphs.py",
        (("    if function._autograph:", "    if False:"),),
        tests=_OWN_STEPS,
    ),
    Mutation(
        "a generator of a step keeps its counter",
        "strategies/common/private_apis/random_numbers.py",
        (('_OPERATIONS = ("rng_read_and_skip",)', "_OPERATIONS = ()"),),
        tests="tests/trainers/model/random_numbers/test_tensorflow_draws.py",
    ),
    Mutation(
        "the next pass over a program's data is read during validation",
        "trainers/keras_program/streams/stream.py",
        (
            (
                "prefetch(tf.data.AUTOTUNE).concatenate(end)",
                "prefetch(tf.data.AUTOTUNE)",
            ),
        ),
        tests=f"{_CALLS}[random_parts_and_callback-multi_worker_mirrored]",
    ),
    Mutation(
        "workers do not learn what the chief's callbacks have drawn",
        "trainers/keras_program/chief_callbacks.py",
        (('{"random": random_state()} if has_passes else {}', "{}"),),
        tests=f"{_CALLS}[random_parts_and_callback-multi_worker_mirrored]",
    ),
    Mutation(
        "updates of asynchronous towers are lost",
        "strategies/inner_loop/async_towers.py",
        (
            (
                "changes_of(lambda: update.apply(outputs))",
                "changes_of(lambda: self._device[-1] == '0' and update.apply(outputs))",
            ),
        ),
        "tests/conformance/test_asynchronous_towers.py::"
        "test_every_batch_is_computed_once_and_every_update_counted",
    ),
    Mutation(
        "several asynchronous workers apply gradients several times",
        "strategies/ps/async_worker.py",
        (
            (
                "outputs = update.prepare(outputs)",
                "n = self._strategy._num_workers\n"
                "        gradients = [g * n for g in outputs.gradients]\n"
                "        outputs = outputs._replace(gradients=gradients)\n"
                "        outputs = update.prepare(outputs)",
            ),
        ),
        "tests/cluster/test_clusters.py::"
        "test_asynchronous_workers_apply_every_gradient_once",
    ),
    Mutation(
        "layer state of workers is divided among them",
        _ALL_REDUCE,
        (
            (
                "    outputs = _sum_dense(context, outputs, wire_types, grouped,",
                "    n = context.num_replicas_in_sync\n"
                "    divided = tf.nest.map_structure(lambda v: v / n, outputs.state)\n"
                "    outputs = outputs._replace(state=divided)\n"
                "    outputs = _sum_dense(context, outputs, wire_types, grouped,",
            ),
        ),
        TWO_REPLICAS,
    ),
    Mutation(
        "workers of servers draw the masks of the first one",
        "strategies/ps/sync_worker.py",
        (
            (
                "step=step, replica=shard_index, global_size",
                "step=step, replica=0 * shard_index, global_size",
            ),
        ),
        TWO_REPLICAS,
    ),
    Mutation(
        "a checkpoint has no scale of the loss",
        "trainers/loop/parts.py",
        (("loss_scale=self.loss_scale_variables(),", "loss_scale=(),"),),
        "tests/conformance/test_loss_scale.py",
    ),
    Mutation(
        "replicas of an evaluation draw the same numbers",
        "trainers/model/eval_step.py",
        (
            (
                "keyed_states(self._seed_states, 0, batch)",
                "keyed_states(self._seed_states, 0, batch, True)",
            ),
        ),
        RANDOMNESS,
    ),
    Mutation(
        "workers send gradients in another type than was asked for",
        "strategies/collectives/update_exchange.py",
        (("all_reduce_packed, send_as=wire_type", "all_reduce_packed"),),
        "tests/strategies/collectives/test_update_exchange.py",
    ),
)


def main() -> int:
    """Returns 1 if a mutation was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names, by commas")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS}")
    flags = parser.parse_args()
    parts = flags.only.split(",")
    chosen = [m for m in MUTATIONS if any(part in m.name for part in parts)]
    console = Console()
    table = Table("mutation", "noticed by", "s")
    tests = {}
    for mutation in chosen:
        start = time.monotonic()
        test = tests[mutation.name] = noticed_by(mutation)
        table.add_row(mutation.name, test or "NONE", f"{time.monotonic() - start:.0f}")
        console.print(f"{mutation.name}: {test or 'NOT NOTICED'}")
        # It records after each mutation: all take 20 minutes, and a run may be
        # interrupted.
        if flags.record:
            record(tests)
    console.print(table)
    num_noticed = len(chosen) - [*tests.values()].count(None)
    console.print(f"{num_noticed} of {len(chosen)} noticed")
    return int(num_noticed < len(chosen))


def record(tests: Mapping[str, str | None]) -> None:
    """Replaces the recorded results of some mutations, and drops unknown mutations.

    Args:
      tests: First test that failed, by the name of the mutation; None if none did.
    """
    path = processes.ROOT / RESULTS
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results = {**known, **tests}
    names = [mutation.name for mutation in MUTATIONS if mutation.name in results]
    text = json.dumps({name: results[name] for name in names}, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")


def noticed_by(mutation: Mutation) -> str | None:
    """Returns the first test that fails with a mutation; None if none does.

    Raises:
      RuntimeError: The tests could not run, or that test fails in any case.
    """
    failed = first_failed(mutation.tests, mutation)
    if failed is None:
        return None
    if first_failed(failed, None) is not None:
        raise RuntimeError(f"{failed} fails without the mutation, too: correct it")
    return failed.partition("::")[2]


@functools.cache
def first_failed(tests: str, mutation: Mutation | None) -> str | None:
    """Runs tests in a copy with a mutation; returns the name of the first that fails.

    Raises:
      RuntimeError: The tests could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        copy_tracked_files(root)
        if mutation is not None:
            mutation.apply(root)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "--exitfirst", "--quiet"),
                *("-p", "no:cacheprovider", "-m", "not exhaustive", tests),
            ],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return None
    # The name of a test may have blanks in its parameters; " - " and a message follow
    # it.
    failed = re.search(
        r"^(?:FAILED|ERROR) (\S*?::.+?)(?: - |$)", done.stdout, re.MULTILINE
    )
    if done.returncode != _TESTS_FAILED or failed is None:
        which = "no mutation" if mutation is None else mutation.name
        raise RuntimeError(f"{tests}, {which}: {done.stdout}{done.stderr}")
    return failed.group(1)


def copy_tracked_files(folder: pathlib.Path) -> None:
    """Copies the tracked files of the project to a folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=processes.ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        source = processes.ROOT / name
        if source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


if __name__ == "__main__":
    sys.exit(main())
