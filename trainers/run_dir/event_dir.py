"""Folder of event files outside the run folder (`--tensorboard_dir`)."""

import contextlib
import errno
from collections.abc import Iterator

import tensorflow as tf

from strategies.common.errors import UsageError
from strategies.common.files import is_url
from strategies.common.text import one_line


def make_event_dir(folder: str) -> None:
    """Creates a folder, perhaps at a URL, and checks that files can be written.

    Raises:
      UsageError: The folder cannot be written.
    """
    # An object store creates folders for everyone, or none at all.
    probe = f"{folder}/.writable"
    try:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("This file tests whether event files can be written here.\n")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise UsageError(
            f"--tensorboard_dir: {folder} cannot be written ({one_line(error)}): "
            "give a folder of this machine, or a URL such as gs://bucket/runs with the "
            "credentials to write there."
        ) from error


@contextlib.contextmanager
def remote_errors(folder: str) -> Iterator[None]:
    """Turns every TensorFlow error of a remote folder into an input/output error.

    A run survives these (`strategies.common.write_errors`). Errors of a folder of this
    machine are kept: TensorFlow's message ends in the system's words there.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if not is_url(folder):
            raise
        raise OSError(errno.EIO, one_line(error)[:200]) from error
