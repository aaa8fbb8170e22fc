"""What the operating system allows: folders and disks that take files, whole files, undisturbed processes."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def check_writable(folder: Path) -> None:
    """Refuse a folder, present or still to be made, that nothing can be written into. Leaves nothing behind.

    Raises:
        ValueError: It is a file or lies in one, or the system does not let us write.
    """
    parent = existing_parent(folder)
    if not parent.is_dir():
        what = f"{folder} is a file" if parent == folder else f"{folder} lies in {parent}, which is a file"
        raise ValueError(f"{what}; give a folder.")
    try:
        # Permission bits do not tell: the administrator passes them, and some file systems refuse everyone.
        with tempfile.TemporaryDirectory(dir=parent, prefix=".neverscratch-"):
            pass
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written: {parent} takes no new files ({error.strerror}); give another folder."
        ) from None


def check_room(folder: Path, needed: int, what: str) -> None:
    """Refuse what the disk of a folder, present or still to be made, cannot hold.

    Args:
        needed: Bytes, roughly.
        what: What takes them, for the message.

    Raises:
        OSError: With both sizes.
    """
    free = shutil.disk_usage(existing_parent(folder)).free
    if needed > free:
        raise OSError(
            f"{what} needs about {shown_bytes(needed)}, but {folder} has {shown_bytes(free)} free; "
            "make room or ask for a smaller size."
        )


def shown_bytes(number: int) -> str:
    """A number of bytes for people."""
    unit, name = next((u for u in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if number >= u[0]), (1e3, "kB"))
    return f"{number / unit:,.{0 if number >= 1000 * unit else 1}f} {name}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, renamed to `path` when whole."""
    # A name of its own: a process that has outlived a killed run may still be at the same file.
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Start processes in here that never see Ctrl-C, which a terminal sends to all of them: this one decides.

    They inherit what is blocked, so not even their start is broken off with a traceback. Here it comes through after.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
