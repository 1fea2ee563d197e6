"""Models with steps of their own, one of which an argument chooses.

Nothing in them is random, so that they can be compared with Keras's own fit.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(24)
draw = np.random.default_rng(24)
# With batches of 16 the last one has 10 rows, and three replicas uneven shards.
x = draw.normal(size=(90, 6))
y = (x[:, :1] * 2 - x[:, 1:2]) + 0.1 * draw.normal(size=(90, 1))
noise = draw.normal(size=(90, 3))


def small(width=8, out=1, last=None):
    return keras.Sequential(
        [layers.Dense(width, activation="tanh"), layers.Dense(out, activation=last)]
    )


class Numbers(keras.Model):
    """Returns plain numbers, and a metric of examples in one of batches."""

    def __init__(self):
        super().__init__()
        self.inner = small()
        self.mean_loss = keras.metrics.Mean(name="mean_loss")
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = ops.mean(ops.square(labels - predictions))
        # In an order of its own.
        trained = self.trainable_variables[::-1]
        gradients = tape.gradient(loss, trained)
        self.optimizer.apply_gradients(zip(gradients, trained, strict=True))
        self.mean_loss.update_state(loss)
        self.error.update_state(labels, predictions)
        return {
            "loss": loss,
            "mean_loss": self.mean_loss.result(),
            "error": self.error.result(),
            # After the update.
            "updates": ops.cast(self.optimizer.iterations, "float64"),
        }


class Summed(Numbers):
    """Takes the sum over a batch for its loss."""

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(labels - self(features, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        self.mean_loss.update_state(loss)
        self.error.update_state(labels, self(features))
        return {"error": self.error.result(), "sum": self.mean_loss.result()}


class Margins(keras.Model):
    """Has a loss for each example, which is zero for most: a margin loss."""

    def __init__(self):
        super().__init__()
        self.inner = small()
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.inner(inputs)

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            distance = ops.abs(labels - self(features))[:, 0]
            loss = ops.maximum(distance - 2.0, 0.0)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class Taught(keras.Model):
    """Learns from a frozen teacher, which weight decay must leave alone."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = small(16), small()
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.student(inputs)

    def train_step(self, data):
        features, _ = data
        target = self.teacher(features, training=False)
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.abs(target - self.student(features, training=True)))
        trained = self.student.trainable_variables
        gradients = tape.gradient(loss, trained)
        self.optimizer.apply(gradients, trainable_variables=trained)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        features, _ = data
        target = self.teacher(features, training=False)
        error = ops.mean(ops.abs(target - self.student(features, training=False)))
        self.loss_tracker.update_state(error)
        return {"loss": self.loss_tracker.result()}


class Averaged(keras.Model):
    """Follows its weights, after each update, with a moving average."""

    def __init__(self):
        super().__init__()
        self.online, self.target = small(), small()
        self.target.trainable = False
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        self.target(inputs)
        return self.online(inputs)

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            drift = ops.mean(ops.square(self.target(features)))
            loss = ops.mean(ops.square(labels - self.online(features))) + 0.1 * drift
        trained = self.online.trainable_variables
        gradients = tape.gradient(loss, trained)
        self.optimizer.apply_gradients(zip(gradients, trained, strict=True))
        for own, followed in zip(self.target.weights, self.online.weights, strict=True):
            own.assign(0.9 * own + 0.1 * followed)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class Adversaries(keras.Model):
    """Updates a critic twice and then a generator, with one optimizer for each."""

    updates_of_critic = 2

    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [layers.Dense(8), layers.LayerNormalization(), layers.Dense(1)]
        )
        self.generator = small(8, 6)
        self.trackers = [keras.metrics.Mean(name=n) for n in ("critic", "generator")]

    def compile(self, critic_optimizer, generator_optimizer):
        super().compile()
        self.critic_optimizer = critic_optimizer
        self.generator_optimizer = generator_optimizer

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, data):
        real, drawn = data["real"], data["noise"]
        for _ in range(self.updates_of_critic):
            with tf.GradientTape() as tape:
                fake = self.critic(self.generator(drawn, training=True), training=True)
                critic_loss = ops.mean(ops.softplus(fake)) + ops.mean(
                    ops.softplus(-self.critic(real, training=True))
                )
            gradients = tape.gradient(critic_loss, self.critic.trainable_variables)
            self.critic_optimizer.apply_gradients(
                zip(gradients, self.critic.trainable_variables, strict=True)
            )
            self.trackers[0].update_state(critic_loss)
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(drawn, training=True), training=True)
            generator_loss = ops.mean(ops.softplus(-fake))
        gradients = tape.gradient(generator_loss, self.generator.trainable_variables)
        self.generator_optimizer.apply_gradients(
            zip(gradients, self.generator.trainable_variables, strict=True)
        )
        self.trackers[1].update_state(generator_loss)
        return {metric.name: metric.result() for metric in self.metrics}


class Parts(keras.Model):
    """Wide and deep parts with an optimizer each (Cheng et al., 2016).

    The gradients of both are taken before either is updated. A third part may learn the
    error that the updated ones leave. The loss is a sum, with a penalty on weights.
    """

    def __init__(self, learns_error=False):
        super().__init__()
        self.wide = layers.Dense(1, kernel_regularizer="l2")
        self.deep = small()
        self.error = layers.Dense(1)
        self.learns_error = learns_error

    def compile(self, wide_optimizer, deep_optimizer, error_optimizer):
        super().compile(loss=keras.losses.MeanSquaredError(reduction="sum"))
        self.own_optimizers = wide_optimizer, deep_optimizer, error_optimizer

    def call(self, inputs):
        return self.wide(inputs) + self.deep(inputs) + self.error(inputs)

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(inputs, labels, self(inputs, training=True))
        for optimizer, part in zip(
            self.own_optimizers[:2],
            (self.wide.trainable_variables, self.deep.trainable_variables),
            strict=True,
        ):
            optimizer.apply(tape.gradient(loss, part), part)
        if self.learns_error:
            with tf.GradientTape() as tape:
                left = self.compute_loss(inputs, labels, self(inputs, training=True))
            error = self.error.trainable_variables
            self.own_optimizers[2].apply(tape.gradient(left, error), error)
        return {"loss": loss}


class Turns(keras.Model):
    """Updates its layers one after the other, by one optimizer of both."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(6, activation="tanh", use_bias=False)
        self.second = layers.Dense(6, use_bias=False)

    def call(self, inputs):
        return self.second(self.first(inputs))

    def train_step(self, data):
        inputs, labels = data
        for layer in (self.first, self.second):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(inputs, labels, self(inputs, training=True))
            weights = layer.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Clipped(Adversaries):
    """Keeps the weights of its critic small, and freezes it where the other learns."""

    def train_step(self, data):
        real, drawn = data["real"], data["noise"]
        for _ in range(self.updates_of_critic):
            with tf.GradientTape() as tape:
                fake = self.critic(self.generator(drawn, training=True), training=True)
                critic_loss = ops.mean(fake) - ops.mean(self.critic(real))
            # After the first step it is frozen.
            self.critic.trainable = True
            weights = self.critic.trainable_variables
            gradients = tape.gradient(critic_loss, weights)
            self.critic_optimizer.apply_gradients(zip(gradients, weights, strict=True))
            for weight in weights:
                weight.assign(ops.clip(weight, -0.2, 0.2))
        self.critic.trainable = False
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(drawn, training=True), training=True)
            generator_loss = -ops.mean(fake)
        weights = self.trainable_variables
        gradients = tape.gradient(generator_loss, weights)
        self.generator_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.trackers[0].update_state(critic_loss)
        self.trackers[1].update_state(generator_loss)
        return {metric.name: metric.result() for metric in self.metrics}


class Spectral(Adversaries):
    """Has a critic whose layers assign their kernels whenever they are called."""

    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [
                layers.SpectralNormalization(layers.Dense(8, activation="tanh")),
                layers.SpectralNormalization(layers.Dense(1)),
            ]
        )


class ClippedSpectral(Clipped, Spectral):
    """Assigns kernels of its critic before its one update of it, and after it."""

    updates_of_critic = 1


class Followed(Averaged):
    """Follows its weights with others, which are trainable and never trained."""

    def __init__(self):
        super().__init__()
        self.target.trainable = True

    def train_step(self, data):
        features, labels = data
        # Before the update, and so of the weights before it.
        for own, followed in zip(self.target.weights, self.online.weights, strict=True):
            own.assign(0.9 * own + 0.1 * followed)
        with tf.GradientTape() as tape:
            goal = labels + 0.1 * ops.stop_gradient(self.target(features))
            loss = ops.mean(ops.square(goal - self.online(features)))
        trained = self.online.trainable_variables
        gradients = tape.gradient(loss, trained)
        self.optimizer.apply_gradients(zip(gradients, trained, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class Damped(keras.Model):
    """Damps its inputs after a few steps, in a function of TensorFlow."""

    def __init__(self):
        super().__init__()
        self.num_steps = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="num_steps"
        )

    def call(self, inputs):
        return self.inner(self.damped(inputs))

    @tf.function
    def damped(self, inputs):
        if self.num_steps > 4:
            inputs = inputs * 0.9
        return inputs


class Decorated(Damped):
    """Has its steps, and parts of them, in functions of TensorFlow."""

    def __init__(self):
        super().__init__()
        self.inner = small()
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @tf.function
    def learn(self, features, labels):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(labels - self(features, training=True)))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    @tf.function
    def train_step(self, data):
        features, labels = data
        self.num_steps.assign(self.num_steps + 1)
        self.loss_tracker.update_state(self.learn(features, labels))
        return {"loss": self.loss_tracker.result()}

    @tf.function
    def test_step(self, data):
        features, labels = data
        error = ops.mean(ops.abs(labels - self(features, training=False)))
        self.loss_tracker.update_state(error)
        return {"loss": self.loss_tracker.result()}


class Distributed(Numbers):
    """Computes its loss as for a strategy of TensorFlow, which adds up gradients."""

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            errors = ops.square(labels - self(features, training=True))[:, 0]
            penalty = ops.sum(ops.square(self.trained[0]))
            loss = 0.5 * tf.nn.compute_average_loss(errors)
            # The last batch of an epoch has fewer.
            loss += 0.5 * tf.nn.compute_average_loss(errors, global_batch_size=16)
            loss += tf.nn.scale_regularization_loss(0.1 * penalty)
        # In an order of its own.
        weights = self.trained[::-1]
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.mean_loss.update_state(loss)
        self.error.update_state(labels, self(features))
        return {
            "loss": loss,
            # A sum over the batch, and no metric.
            "total": ops.sum(errors),
            "mean_loss": self.mean_loss.result(),
            "error": self.error.result(),
        }

    @property
    def trained(self):
        return self.trainable_variables


class Combined(Damped, Distributed):
    """Has what four others have: a teacher, a follower, functions and a penalty."""

    def __init__(self):
        super().__init__()
        self.teacher, self.follower = small(16), small()
        # Which the first validation builds.
        self.validated = keras.Sequential([layers.Rescaling(0.9)])
        self.teacher.add(layers.Dense(1, kernel_regularizer="l2"))

    @tf.function
    def train_step(self, data):
        features, labels = data
        self.num_steps.assign(self.num_steps + 1)
        for own, followed in zip(
            self.follower.weights, self.inner.weights, strict=True
        ):
            own.assign(0.9 * own + 0.1 * followed)
        before = ops.cast(self.optimizer.iterations, "float64")
        logs = super().train_step((features, self.taught(features, labels)))
        after = ops.cast(self.optimizer.iterations, "float64")
        # With the penalty of the teacher, which is not updated.
        logs["penalty"] = ops.sum(self.losses)
        return {**logs, "updates_before": before, "updates": after}

    @tf.function
    def test_step(self, data):
        features, labels = data
        predictions = self.validated(self(features))
        self.error.update_state(self.taught(features, labels), predictions)
        return {"error": self.error.result()}

    def taught(self, features, labels):
        goal = self.teacher(features, training=False) + self.follower(features)
        return labels + 0.1 * ops.stop_gradient(goal)

    @property
    def trained(self):
        return self.inner.trainable_variables


class AddsItsLoss(keras.Model):
    """Has no labels: a layer adds the loss, of which Keras takes the sum."""

    def __init__(self, axis=None):
        super().__init__()
        self.inner = small(4, 6)
        self.axis = axis

    def call(self, inputs):
        outputs = self.inner(inputs)
        self.add_loss(ops.mean(ops.square(inputs - outputs), self.axis))
        return outputs


class OwnReport(keras.Model):
    """Leaves training to Keras, and reports what it likes."""

    def __init__(self):
        super().__init__()
        self.inner = small()
        self.shift = self.add_weight(shape=(), initializer="zeros")
        self.num_steps = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        return self.inner(inputs) + self.shift

    def train_step(self, data):
        logs = super().train_step(data)
        self.num_steps.assign_add(1.0)
        vectors = {"means": ops.mean(data[0], axis=0), "sums": ops.sum(data[0], axis=0)}
        # Variables, which Keras reads at the end of the epoch.
        state = {"num_steps": self.num_steps, "shift": self.shift}
        return {**logs, **vectors, **state}

    def test_step(self, data):
        return {**super().test_step(data), "labels": ops.mean(data[1], axis=0)}

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        ratio = results["mae"] / ops.sqrt(results["loss"])
        return {**results, "largest": ops.mean(ops.abs(y_pred)), "ratio": ratio}


class Sizes(keras.metrics.Metric):
    """Has several results, one of which is a variable."""

    def __init__(self):
        super().__init__(name="sizes")
        self.total = self.add_variable((), "zeros", name="total")
        self.rows = self.add_variable((), "zeros", name="rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_pred)))
        self.rows.assign_add(ops.cast(ops.shape(y_pred)[0], self.rows.dtype))

    def result(self):
        return {"size": self.total / self.rows, "rows": self.rows}


class Errors(keras.metrics.Metric):
    """Divides a sum over examples by a number of batches."""

    def __init__(self):
        super().__init__(name="errors")
        self.total = self.add_variable((), "zeros", name="total")
        self.batches = self.add_variable((), "zeros", "int32", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))
        self.batches.assign_add(1)

    def result(self):
        return self.total / ops.cast(self.batches, self.total.dtype)


adam = keras.optimizers.Adam(0.01)
like_numbers: dict[str, type[keras.Model]] = {
    "numbers": Numbers,
    "averaged": Averaged,
    "followed": Followed,
    "distributed": Distributed,
}
adversaries: dict[str, type[keras.Model]] = {
    "adversaries": Adversaries,
    "clipped": Clipped,
    "spectral": Spectral,
    "clipped_spectral": ClippedSpectral,
}
if sys.argv[1] in like_numbers:
    model = like_numbers[sys.argv[1]]()
    model.compile(optimizer=adam)
    model.fit(x, y, batch_size=16, epochs=3)
elif sys.argv[1] == "summed":
    model = Summed()
    model.compile(optimizer=keras.optimizers.SGD(1e-3))
    model.fit(x, y, batch_size=16, epochs=3)
elif sys.argv[1] == "margins":
    model = Margins()
    model.compile(optimizer=keras.optimizers.SGD(0.05))
    order = np.argsort(np.abs(y[:, 0]))
    order[[3, -1]] = order[[-1, 3]]
    model.fit(x[order], y[order], batch_size=16, epochs=3)
elif sys.argv[1] == "taught":
    model = Taught()
    model.compile(optimizer=keras.optimizers.AdamW(0.01, weight_decay=0.1))
    model.fit(x, y, batch_size=16, epochs=3, validation_data=(x[:25], y[:25]))
elif sys.argv[1] in adversaries:
    model = adversaries[sys.argv[1]]()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01))
    model.fit({"real": x, "noise": noise}, batch_size=16, epochs=3)
elif sys.argv[1] == "combined":
    model = Combined()
    model.compile(optimizer=keras.optimizers.AdamW(0.01, weight_decay=0.1))
    model.fit(x, y, batch_size=16, epochs=2, validation_data=(x[:25], y[:25]))
elif sys.argv[1] in ("parts", "parts_and_error"):
    model = Parts(learns_error=sys.argv[1] != "parts")
    optimizers = keras.optimizers.Ftrl(0.05), adam, keras.optimizers.SGD(0.01)
    model.compile(*optimizers)
    model.fit(x, y, batch_size=16, epochs=3, validation_data=(x[:25], y[:25]))
elif sys.argv[1] == "replaced":
    model = small()
    model.compile(adam, "mse")
    loss_of_keras = model.compute_loss
    # Of this model alone, not of its class.
    model.compute_loss = lambda *given, **named: 10 * loss_of_keras(*given, **named)
    model.fit(x, y, batch_size=16, epochs=2)
elif sys.argv[1] == "results":
    model = small(8, 3, "softmax")
    f1 = keras.metrics.F1Score(average=None)
    model.compile(adam, "categorical_crossentropy", metrics=["acc", f1, Sizes()])
    classes = np.eye(3)[np.argmax(x[:, :3], axis=1)]
    # Not with a validation, after which Keras reads the variable of `rows`.
    model.fit(x, classes, batch_size=16, epochs=2)
elif sys.argv[1] == "turns":
    model = Turns()
    model(x[:2])
    model.compile(adam, "mse")
    # Not in the order of the updates.
    adam.build(model.trainable_variables[::-1])
    model.fit(x, y, batch_size=16, epochs=2)
    model.fit(x, y, batch_size=16, epochs=2)
elif sys.argv[1] == "decorated":
    model = Decorated()
    model.compile(optimizer=adam)
    model.fit(x, y, batch_size=16, epochs=3, validation_data=(x[:25], y[:25]))
elif sys.argv[1] in ("added", "added_rows"):
    model = AddsItsLoss(axis=None if sys.argv[1] == "added" else 1)
    model.compile(optimizer=adam)
    model.fit(x, batch_size=16, epochs=3, validation_data=(x[:25],))
elif sys.argv[1] == "report":
    model = OwnReport()
    # Multiplies the loss and divides the gradients.
    scaled = keras.optimizers.SGD(0.05, loss_scale_factor=8.0)
    model.compile(optimizer=scaled, loss="mse", metrics=["mae", Errors()])
    model.fit(x, y, batch_size=16, epochs=3, validation_split=0.2)
else:
    raise SystemExit(f"there is no model {sys.argv[1]!r}")
