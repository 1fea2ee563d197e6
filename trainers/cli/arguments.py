"""Arguments of a command line, read by absl without its hidden flags."""

import re
from collections.abc import Sequence

from absl import flags

from strategies.common.fields import LONGEST_NAME
from strategies.common.text import shown


def read_arguments(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Sets flags, and returns the arguments that are not flags.

    Raises:
      flags.UnrecognizedFlagError: A flag is unknown.
      flags.IllegalFlagValueError: A value is not accepted.
      flags.Error: A flag lacks its value.
    """
    for argument in argv[1:]:
        # absl reads these two before any other, whether they are defined or not.
        is_of_absl = re.fullmatch(r"--?(flagfile|undefok)(=.*)?", argument, re.DOTALL)
        name = re.sub(r"^--?", "", argument).partition("=")[0]
        # absl compares a name with all flags by a recursion as deep as it is long.
        is_too_long = argument.startswith("-") and len(name) > LONGEST_NAME
        if is_of_absl or is_too_long:
            raise flags.UnrecognizedFlagError(shown(name))
    try:
        return values(list(argv))[1:]
    except ValueError as error:
        # absl raises ValueError for --noverbose=1.
        argument, _, reason = str(error).partition(" ")
        raise flags.IllegalFlagValueError(f"flag {argument}: {reason}") from error
