"""Errors that a person can act on, and how a command reports them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class UserError(ValueError):
    """A mistake in a file, a flag or a setting.

    The message is one line: the thing, its value, and a legal value.
    """


def command_line(main: Callable[[], None]) -> None:
    """Run a command; a :class:`UserError` becomes one line on stderr and exit code 2.

    Under a launcher all ranks find the same mistake: the first one says it.
    """
    try:
        main()
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":
            print("error: " + " ".join(str(error).split()), file=sys.stderr, flush=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
