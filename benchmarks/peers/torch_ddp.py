"""PyTorch's DistributedDataParallel over gloo, as one of several processes.

Needs the extra `bench`. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are torchrun's.
"""

import os

import numpy as np
import torch
from torch import nn

from benchmarks.peers.work import WORKS, Stopwatch, Work, arguments, examples

_STEPS_BETWEEN_TIMES = 5


def main() -> None:
    """Trains a model, and prints the speed in the first process."""
    flags = arguments()
    torch.set_num_threads(flags.threads or os.cpu_count() or 1)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    work = WORKS[flags.work]
    model = nn.parallel.DistributedDataParallel(_model(flags.work, work))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    loss_of = nn.CrossEntropyLoss()
    share = flags.global_batch_size // torch.distributed.get_world_size()
    features, labels = _tensors(work)
    generator = torch.Generator().manual_seed(rank)
    watch = Stopwatch(flags.global_batch_size)
    for _ in range(flags.steps // _STEPS_BETWEEN_TIMES):
        watch.begin()
        for _ in range(_STEPS_BETWEEN_TIMES):
            rows = torch.randint(len(labels), (share,), generator=generator)
            optimizer.zero_grad()
            loss = loss_of(model(features[rows]), labels[rows])
            loss.backward()
            optimizer.step()
        loss.item()
        watch.end(_STEPS_BETWEEN_TIMES)
    if rank == 0:
        watch.report(torch=torch.__version__)
    torch.distributed.destroy_process_group()


def _tensors(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = examples(work)
    if len(work.input_shape) == 3:
        # Channels first, PyTorch's own order.
        features = np.ascontiguousarray(features.transpose(0, 3, 1, 2))
    return torch.from_numpy(features), torch.from_numpy(labels)


def _model(name: str, work: Work) -> nn.Module:
    layers: list[nn.Module] = []
    width = work.input_shape[-1]
    if name == "convnet":
        for filters in (32, 64):
            layers += [
                nn.Conv2d(width, filters, 3, padding="same"),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            width = filters
        width *= (work.input_shape[0] // 4) * (work.input_shape[1] // 4)
        layers += [nn.Flatten(), nn.Linear(width, 128), nn.ReLU()]
        width = 128
    for units in work.hidden_units:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, work.num_classes))


if __name__ == "__main__":
    main()
