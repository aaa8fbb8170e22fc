"""How names that do not exist are refused: with the nearest match and the known ones."""

from collections.abc import Iterable

from neverscratch.tasks.base import nearest

# A longer list helps nobody; then only the nearest name is shown.
_LISTED = 32


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """One sentence for an unknown name: what was given, the nearest match, and what exists."""
    known = sorted(known)
    listed = f"Known: {', '.join(known)}." if len(known) <= _LISTED else f"{len(known)} are known."
    return f"Unknown {kind} {given!r}.{nearest(given, known)} {listed}"
