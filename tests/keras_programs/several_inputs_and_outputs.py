"""Tickets with a priority and a department (after keras.io), by dictionaries."""

import keras
import numpy as np

keras.utils.set_random_seed(7)
random = np.random.default_rng(2)
title_data = random.integers(100, size=(650, 6))
body_data = random.integers(100, size=(650, 10))
tags_data = random.integers(2, size=(650, 4)).astype("float32")
priority_targets = random.random(size=(650, 1))
dept_targets = keras.utils.to_categorical(random.integers(3, size=650), 3)

title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(4,), name="tags")
title_features = keras.layers.LSTM(8)(keras.layers.Embedding(100, 8)(title_input))
body_words = keras.layers.Embedding(100, 8)(body_input)
body_features = keras.layers.GlobalAveragePooling1D()(body_words)
x = keras.layers.concatenate([title_features, body_features, tags_input])
priority_pred = keras.layers.Dense(1, name="priority", activation="sigmoid")(x)
department_pred = keras.layers.Dense(3, name="department")(x)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"priority": ["mae"], "department": ["accuracy"]},
)
history = model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=2,
    batch_size=32,
)
print(sorted(history.history))
