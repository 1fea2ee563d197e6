"""A DataLoader of PyTorch that shuffles."""

import keras
import numpy as np
import torch

keras.utils.set_random_seed(15)
torch.manual_seed(15)
features = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
data = torch.utils.data.TensorDataset(
    torch.from_numpy(features), torch.from_numpy(features.sum(1, keepdims=True))
)
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", "mse", metrics=["mae"])
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model.fit(loader, epochs=2)
