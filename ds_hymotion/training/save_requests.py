"""Saves that a person asks for while a run goes on, by files in its folder: ``touch RUN/save`` or ``RUN/save_quit``."""

from __future__ import annotations

from pathlib import Path

SAVE, SAVE_QUIT = "save", "save_quit"


class SaveRequests:
    """Looks for the files on the first rank, whose finding travels with each step's own reduction.

    A file that was there before the run began is not meant for it, and removed.

    Args:
        run: the run's folder.
        active: whether this rank looks.
    """

    def __init__(self, run: Path, active: bool) -> None:
        self.files = {name: run / name for name in (SAVE, SAVE_QUIT)}
        self.active = active
        self._stuck: set[str] = set()
        self.take()

    def votes(self) -> list[float]:
        """1 for a wish to save and for one to save and quit, else 0; always 0 on ranks that do not look."""
        found = [self.active and name not in self._stuck and path.exists() for name, path in self.files.items()]
        return [float(found[0] or found[1]), float(found[1])]

    def take(self) -> None:
        """Remove the files, because they are being acted on; one that cannot be removed counts no more."""
        for name, path in self.files.items():
            try:
                if self.active:
                    path.unlink(missing_ok=True)
            except OSError:
                self._stuck.add(name)
