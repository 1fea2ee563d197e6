"""A small GPT-2 of keras-hub, trained on sentences of unequal length."""

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(7)
random = np.random.default_rng(0)
words = [chr(ord("a") + number) for number in range(20)]
sentences = [
    " ".join(words[(first + place) % 20] for place in range(length))
    for first, length in zip(
        random.integers(0, 20, 192), random.integers(4, 15, 192), strict=True
    )
]
tokens = ["<|endoftext|>", "Ġ", *words, *(f"Ġ{word}" for word in words)]
tokenizer = keras_hub.models.GPT2Tokenizer(
    vocabulary={token: number for number, token in enumerate(tokens)},
    merges=[f"Ġ {word}" for word in words],
)
preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=16)
backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=len(tokens),
    num_layers=2,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    max_sequence_length=16,
)
model = keras_hub.models.GPT2CausalLM(backbone, preprocessor)
model.compile(optimizer=keras.optimizers.AdamW(0.01), sampler="greedy")
model.fit(sentences, batch_size=32, epochs=2)
print(model.generate("a b c", max_length=8))
