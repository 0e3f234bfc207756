"""The folder of a run, proven writable before anything is computed for it."""

from __future__ import annotations

from pathlib import Path

from ds_hymotion.errors import UserError


def make_folder(folder: Path) -> None:
    """Make a run's folder if it is missing.

    Raises:
        UserError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--output_dir {folder}: cannot be written ({error.strerror}); give a writable folder"
        ) from None
