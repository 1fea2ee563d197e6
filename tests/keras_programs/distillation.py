"""A student learns from a teacher, in its own compute_loss (after keras.io)."""

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

keras.utils.set_random_seed(23)
images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.temperature = temperature

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = keras.losses.kl_divergence(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        )
        return 0.1 * student_loss + 0.9 * ops.mean(distillation_loss)

    def call(self, x):
        return self.student(x)


teacher = keras.Sequential(
    [keras.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)]
)
student = keras.Sequential([keras.Input((64,)), layers.Dense(10)])
distiller = Distiller(student, teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
print(distiller.fit(images, labels, epochs=2, batch_size=64).history)
