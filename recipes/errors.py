"""How names that do not exist are refused: with the nearest match and the known ones."""

from collections.abc import Iterable
from difflib import get_close_matches

# A longer list does not help anybody; then only the names nearest to what was typed are shown.
_LISTED = 32


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """One sentence for an unknown name: what was given, the nearest match, and what exists."""
    known = sorted(known)
    near = get_close_matches(given, known, n=5, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if len(known) <= _LISTED:
        return f"Unknown {kind} {given!r}.{hint} Known: {', '.join(known)}."
    others = f" Others like it: {', '.join(near[1:])}." if len(near) > 1 else ""
    return f"Unknown {kind} {given!r}, none of {len(known)} known.{hint}{others}"
