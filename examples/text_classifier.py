"""A transformer that classifies sentences as praise or complaint.

  python -m trainers.main --model=examples.text_classifier:model \
    --dataset=examples.text_classifier:reviews --strategy=mirrored --num_replicas=2

Sentences are made from a few words, with "not" and "but" in them, so that no single
word decides their class. Nothing is downloaded.
"""

import keras
import numpy as np

_SENTENCE_LENGTH = 16
_THINGS = ("the food", "the room", "this film", "the service", "our guide", "that book")
_GOOD = ("good", "lovely", "great", "charming", "delicious", "clever")
_BAD = ("bad", "awful", "dull", "dirty", "rude", "bland")
_MORE = ("", "really ", "rather ", "quite ")


def reviews() -> tuple[np.ndarray, np.ndarray]:
    """Returns sentences as word ids [n, 16], padded with 0, and 1 for praise [n]."""
    random = np.random.default_rng(seed=0)
    pairs = [_sentence(random) for _ in range(3_000)]
    vocabulary = sorted({word for text, _ in pairs for word in text.split()})
    ids = {word: index for index, word in enumerate(vocabulary, start=1)}
    features = np.zeros([len(pairs), _SENTENCE_LENGTH], np.int64)
    for row, (text, _) in enumerate(pairs):
        words = [ids[word] for word in text.split()]
        features[row, : len(words)] = words
    return features, np.array([is_praise for _, is_praise in pairs], np.int64)


def _sentence(random: np.random.Generator) -> tuple[str, bool]:
    """Returns a sentence and its class, which the part after "but" decides."""
    text, is_praise = _clause(random)
    if random.random() < 0.5:
        more, is_praise = _clause(random)
        text = f"{text} but {more}"
    return text, is_praise


def _clause(random: np.random.Generator) -> tuple[str, bool]:
    is_praise, is_denied = random.random(2) < (0.5, 0.4)
    word = random.choice(_GOOD if is_praise != is_denied else _BAD)
    denied = "not " if is_denied else ""
    text = f"{random.choice(_THINGS)} was {denied}{random.choice(_MORE)}{word}"
    return text, bool(is_praise)


def model() -> keras.Model:
    """Embeds words and their places, then one block of attention, then logits."""
    width = 32
    words = keras.Input([_SENTENCE_LENGTH], dtype="int64", name="words")
    # A layer that is called on a constant would not be a layer of the model.
    places = keras.ops.cumsum(keras.ops.ones_like(words), axis=1) - 1
    embedded = keras.layers.Embedding(64, width, mask_zero=True, name="word")(words)
    embedded += keras.layers.Embedding(_SENTENCE_LENGTH, width, name="place")(places)
    attended = keras.layers.MultiHeadAttention(num_heads=2, key_dim=16)(
        embedded, embedded
    )
    hidden = keras.layers.LayerNormalization()(embedded + attended)
    more = keras.layers.Dense(2 * width, activation="gelu")(hidden)
    hidden = keras.layers.LayerNormalization()(hidden + keras.layers.Dense(width)(more))
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    made = keras.Model(words, keras.layers.Dense(2, name="logits")(pooled))
    made.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return made
