"""How errors are told: unknown names with the nearest known one, and options as the flags that people type.

A message names an option of a task as `the option label` or `missing=zero`, which is how Python takes it; at the edge
of the command line, `as_flags` turns that into `--label` and `--option missing=zero`.
"""

import re
import shutil
from collections.abc import Iterable

from neverscratch.tasks.base import nearest

# Arguments with a flag of their own; the other options of a task go through --option.
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in ("data_dir", "train_size", "num_proc", "size", "seed")}
_FLAGS |= {name: f"--{name}" for name in ("data", "input", "label")}
# Names that no sentence uses as a word.
_UNMISTAKABLE = ("data_dir", "train_size", "num_proc")
# Not within a path, a dotted key or a word, and not where a flag stands already.
_START, _END = r"(?<![\w./=-])(?<!--set )(?<!--option )", r"(?![\w./=:-]*[\w/=:-])"

# A longer list helps nobody; then only the nearest name is shown.
_LISTED = 32


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """One sentence for an unknown name: what was given, the nearest match, and what exists."""
    known = sorted(known)
    listed = f"Known: {', '.join(known)}." if len(known) <= _LISTED else f"{len(known)} are known."
    return f"Unknown {kind} {given!r}.{_meant(given, known)} {listed}"


def _meant(given: str, known: list[str]) -> str:
    """The names a short form stands for, by its initials or as a part of theirs; else the one nearest in letters."""
    name = given.lower()
    by_initials = [k for k in known if len(name) > 1 and "".join(word[:1] for word in k.split("_")) == name]
    by_part = [k for k in known if f"_{name}_" in f"_{k}_"]
    found = by_initials or by_part
    return f" Did you mean {' or '.join(map(repr, found))}?" if 0 < len(found) < 4 else nearest(given, known)


def as_flags(message: str, options: Iterable[str]) -> str:
    """A message with names of arguments as what one types: `options` are those of the task at hand."""
    known = {**{name: f"--option {name}=..." for name in options}, **_FLAGS}
    names = "|".join(map(re.escape, known))
    message = re.sub(rf"\bthe option ({names})\b(\.$)?", lambda m: known[m[1]] + (m[2] or ""), message)
    message = re.sub(
        rf"{_START}({names})=", lambda m: f"{_FLAGS[m[1]]} " if m[1] in _FLAGS else f"--option {m[1]}=", message
    )
    message = re.sub(rf"{_START}({'|'.join(_UNMISTAKABLE)}){_END}", lambda m: _FLAGS[m[1]], message)
    return message.replace("=....", "=...")


def os_sentence(error: OSError) -> str:
    """An error of the system, or of ours about files, as one sentence."""
    if isinstance(error, shutil.Error):
        # It collects the failures of a whole tree; one of them says enough.
        text = str(error.args[0][0][-1])
    elif error.errno is None:
        text = str(error)
    else:
        text = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return text.strip().removesuffix(".") + "."
