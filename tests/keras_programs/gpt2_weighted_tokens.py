"""A small GPT-2 of keras-hub on arrays: features, labels and weights of tokens."""

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(17)
random = np.random.default_rng(0)
tokens = random.integers(1, 40, (192, 17))
mask = np.arange(17) < random.integers(4, 17, 192)[:, None]
x = {"token_ids": tokens[:, :-1], "padding_mask": mask[:, :-1]}
y, sample_weight = tokens[:, 1:], mask[:, 1:]

backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=41,
    num_layers=2,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    max_sequence_length=16,
)
model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
model.fit(x=x, y=y, sample_weight=sample_weight, batch_size=32, epochs=2)
