"""Types of numbers that layers compute with and keep."""

import keras

from strategies.common.errors import UsageError
from trainers.config.config import Config
from trainers.config.model import ModelConfig


def set_precision(config: ModelConfig) -> None:
    """Sets the types that Keras's layers take by default.

    A module of the user's may set others when it is imported, after this.
    """
    keras.config.set_floatx("float64" if config.dtype == "float64" else "float32")
    keras.config.set_dtype_policy(config.dtype)


def follow_floatx() -> None:
    """Makes layers double precision if a module has set Keras's floatx to it.

    Keras itself does so as long as no other default has been set, as ours has.
    """
    is_default = keras.config.dtype_policy().name == ModelConfig().dtype
    if is_default and keras.config.floatx() == "float64":
        keras.config.set_dtype_policy("float64")


def check_precision(config: Config) -> None:
    """Refuses a module's types that contradict the types of a flag."""
    model, policy = config.model, keras.config.dtype_policy().name
    is_given = "dtype" in config.given or model.dtype != ModelConfig().dtype
    if model.is_custom and is_given and policy != model.dtype:
        # The policy is set where the model is made.
        where = f"the module of --model={model.model}"
        if model.script is not None:
            where = f"--script={model.script}"
        raise UsageError(
            f"--dtype={model.dtype} contradicts {policy}, which {where} sets for "
            "keras.config.dtype_policy: leave one of them out."
        )
