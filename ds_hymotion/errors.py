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

    Before a process group runs all ranks find the same mistake, and the first one says it; after that a rank may be
    alone with its own, and each says what it met.
    """
    try:
        main()
    except UserError as error:
        rank = os.environ.get("RANK", "0")
        line = " ".join(str(error).split())
        if rank == "0":
            print(f"error: {line}", file=sys.stderr, flush=True)
        elif _group_runs():
            print(f"error on rank {rank}: {line}", file=sys.stderr, flush=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(130)


def _group_runs() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()
