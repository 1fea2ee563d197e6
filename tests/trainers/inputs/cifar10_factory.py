"""Small files in the form in which CIFAR-10 is published."""

import io
import pathlib
import tarfile

import numpy as np

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
IMAGES_PER_FILE = 4


def images_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [n, 32, 32, 3] and labels int64 [n], others in every file."""
    random = np.random.default_rng(NAMES.index(name))
    pixels = random.integers(0, 256, (IMAGES_PER_FILE, 32, 32, 3), dtype=np.uint8)
    return pixels, random.integers(0, 10, IMAGES_PER_FILE)


def training_images() -> tuple[np.ndarray, np.ndarray]:
    """Returns images and labels of all training files, in their order."""
    pixels, labels = zip(*(images_of(name) for name in NAMES[:-1]), strict=True)
    return np.concatenate(pixels), np.concatenate(labels)


def binary(name: str) -> bytes:
    """Returns for each image a byte with its class, and its three color planes."""
    pixels, labels = images_of(name)
    rows = [
        bytes([label]) + image.transpose(2, 0, 1).tobytes()
        for image, label in zip(pixels, labels, strict=True)
    ]
    return b"".join(rows)


def write_folder(folder: pathlib.Path) -> pathlib.Path:
    """Writes the files that the published archive unpacks to; returns the folder."""
    folder.mkdir()
    for name, content in files_of().items():
        (folder / name).write_bytes(content)
    (folder / "batches.meta").write_text("not read")
    return folder


def write_archive(path: pathlib.Path, *more: tarfile.TarInfo) -> pathlib.Path:
    """Writes an archive of the files, with further members at its end."""
    with tarfile.open(path, "w:gz") as archive:
        inner = "cifar-10-batches-bin"
        folder = tarfile.TarInfo(inner)
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files_of().items():
            member = tarfile.TarInfo(f"{inner}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def files_of() -> dict[str, bytes]:
    """Contents by name."""
    return {f"{name}.bin": binary(name) for name in NAMES}
