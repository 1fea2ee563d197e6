"""A Grain pipeline, as a data set and as a loader."""

import grain
import keras
import numpy as np

keras.utils.set_random_seed(14)
features = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")


class Sums:
    def __len__(self):
        return len(features)

    def __getitem__(self, index):
        return features[index], features[index].sum(keepdims=True)


data = grain.MapDataset.source(Sums()).shuffle(seed=1).batch(20)
loader = grain.DataLoader(
    data_source=Sums(),
    sampler=grain.samplers.IndexSampler(200, shuffle=True, seed=1, num_epochs=1),
    operations=[grain.transforms.Batch(20)],
)
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", "mse", metrics=["mae"])
model.fit(data, epochs=2, validation_data=data)
model.fit(loader, epochs=2)
