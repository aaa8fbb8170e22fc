"""Every small real set beside the checkout is read by `data check`, and has the sizes of its manifest."""

import json
import re
import sys
from pathlib import Path

import pytest

from neverscratch.recipes.cli import main

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of small real sets is not beside the checkout")

# Name in the manifest -> task, and its options on the command line; a path is in the folder of the sets.
SETS: dict[str, tuple[str, ...]] = {
    "GunPoint": ("ucr:GunPoint", "--data-dir", "ucr"),
    "ItalyPowerDemand": ("ucr:ItalyPowerDemand", "--data-dir", "ucr"),
    "JapaneseVowels": ("ucr:JapaneseVowels", "--data-dir", "ts"),
    "BasicMotions": ("ucr:BasicMotions", "--data-dir", "ts"),
    "Covid3Month": ("ucr:Covid3Month", "--data-dir", "ts"),
    "digits": ("own", "--data-dir", "digits", "--option", "format=parquet"),
    "debian_sections": ("own", "--data-dir", "debian_sections"),
    "manpages": ("own", "--data-dir", "manpages", "--input", "text"),
    "pairs (AAN layout)": ("lra-retrieval", "--data-dir", "pairs"),
    "speech_commands (SYNTHETIC, Speech Commands layout)": ("speech-commands-10", "--data-dir", "speech_commands"),
    "spoken_language": ("own", "--data-dir", "spoken_language", "--input", "audio", "--label", "language"),
    "bidmc_like/HR": ("bidmc-hr", "--data-dir", "bidmc_like"),
    "lra_format/listops": ("lra-listops", "--data-dir", "lra_format"),
    "lra_format/pathfinder32/curv_contour_length_14": ("lra-pathfinder", "--data-dir", "lra_format"),
    "lra_format/pathfinder32/curv_baseline": ("lra-pathfinder", "--data-dir", "lra_format", "--option", "level=easy"),
    "lra_format/pathfinder128/curv_contour_length_14": ("lra-pathx", "--data-dir", "lra_format"),
    "lra_format/pathfinder256/curv_contour_length_14": ("lra-pathx256", "--data-dir", "lra_format"),
}
# Listed in the manifest, but left out, as the real sets have it: one empty picture.
EMPTY = {"lra_format/pathfinder32/curv_baseline": 1}


def expected_sizes(entry: dict) -> tuple[int, int]:
    """Training and validation examples together, and test examples; all of them and 0 where parts are ours."""
    sizes = entry.get("sizes") or {part: entry[part] for part in ("train", "validation", "test") if part in entry}
    if "test" not in sizes:
        return sum(sizes.values()), 0
    total = sizes["all"] if "all" in sizes else sum(sizes.values())
    return total - sizes["test"], sizes["test"]


def manifest() -> dict[str, dict]:
    entries = json.loads((SHARED / "manifest.json").read_text())["datasets"] if SHARED.is_dir() else []
    return {entry["name"]: entry for entry in entries}


@shared
def test_no_set_is_left_out() -> None:
    # The older forms of GunPoint are held against the newer one in test_ucr.py.
    assert set(manifest()) - set(SETS) == {"GunPoint (older UCR text + .ts)"}


@shared
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETS)
def test_sizes_of_the_manifest(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path))
    task, option, folder, *rest = SETS[name]
    monkeypatch.setattr(sys, "argv", ["neverscratch", "data", "check", task, option, str(SHARED / folder), *rest])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    sizes = {
        part: int(number.replace(",", "")) for part, number in re.findall(r"^(\w+) +([\d,]+) examples", shown, re.M)
    }
    assert list(sizes) == ["train", "validation", "test"]
    entry = manifest()[name]
    learned, test = expected_sizes(entry)
    if test:
        assert (sizes["train"] + sizes["validation"], sizes["test"]) == (learned, test)
    else:
        assert sum(sizes.values()) == learned - EMPTY.get(name, 0)
    if isinstance(entry["classes"], int):
        assert f"{entry['classes']} classes" in shown
    else:
        assert "regression" in shown
