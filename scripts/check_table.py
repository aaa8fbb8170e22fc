"""Which check ran for which family and head: a table from the test ids of a run, and an exit status of 1 for a hole.

    python -m pytest tests/modeling --junitxml=junit.xml
    python scripts/check_table.py junit.xml

A hole is a check that some head of a family passed and another head of that kind did not run, or that failed or was
skipped. What a family refuses on purpose stands in `REFUSED` of tests/modeling/common.py, and its sentence is asserted.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests" / "modeling"
sys.path.insert(0, str(TESTS))

from common import CASES, NAMES, QUADRATIC, REFUSED  # noqa: E402

ALL_HEADS = "all heads"
# The files that test every family because it is listed; the others belong to one family or one op.
SHARED = ("test_models", "test_steps", "test_graphs", "test_lengths", "test_remote_code", "test_text_pipelines")
STEP_CHECKS = {
    name.removeprefix("test_")
    for name in re.findall(r"def (test_\w+)", (TESTS / "test_steps.py").read_text(encoding="utf-8"))
}


def read(path: Path) -> dict[str, dict[tuple[str, str], Counter]]:
    """Check -> (family or variant, head) -> how often it passed, failed or was skipped."""
    by_case = {str(case): case for case in CASES}
    checks: dict[str, dict[tuple[str, str], Counter]] = defaultdict(lambda: defaultdict(Counter))
    for test in ElementTree.parse(path).iter("testcase"):
        if test.get("classname", "").rpartition(".")[2] not in SHARED:
            continue
        check, _, identifier = test.get("name", "").partition("[")
        parts = identifier.rstrip("]")
        row = row_of(parts, by_case)
        if row is not None:
            kinds = {child.tag for child in test}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            checks[check.removeprefix("test_")][row][outcome] += 1
    return checks


def row_of(identifier: str, by_case: dict) -> tuple[str, str] | None:
    """The family and head that a parametrised test id belongs to, or None if it belongs to none."""
    # The longest first: the name of a hybrid may end in that of a family.
    for text, case in sorted(by_case.items(), key=lambda item: -len(item[0])):
        if identifier == text or identifier.startswith(text + "-") or identifier.endswith("-" + text):
            return case.name, case.auto.removeprefix("AutoModel") or "Backbone"
    # And a variant's name begins with its family's.
    for name in sorted(NAMES, key=len, reverse=True):
        if f"-{name}-" in f"-{identifier}-":
            return name, ALL_HEADS
    return None


def holes(checks: dict[str, dict[tuple[str, str], Counter]]) -> list[str]:
    """What failed, was skipped, or did not run for a row for which it should have."""
    families = [name for name in NAMES if name.partition("-")[0] == name]
    found = []
    for check, rows in checks.items():
        for row, outcomes in rows.items():
            for outcome in ("failed", "skipped"):
                found += [f"{check}: {outcome} for {' '.join(row)}"] if outcomes[outcome] else []
        heads = {head for _, head in rows}
        tested = {name for name, _ in rows}
        # A check is a shared one if it ran for more than one family; the files of a family have checks of their own.
        if len(tested & set(families)) < 2:
            continue
        for head in heads:
            for name in families:
                # A family that refuses to step is tested for that, and for nothing else about steps.
                excused = check in STEP_CHECKS and ("step", name) in REFUSED
                excused = excused or (check == "length_65536" and name in QUADRATIC)
                if (name, head) not in rows and not excused:
                    found.append(f"{check}: did not run for {name} {head}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("junit", type=Path, help="file written by pytest --junitxml")
    checks = read(parser.parse_args().junit)
    shared = {check: rows for check, rows in checks.items() if len({name for name, _ in rows}) > 1}
    if not shared:
        print("No check of the shared suite is in that file; run pytest on tests/modeling.", file=sys.stderr)
        return 1
    heads = [ALL_HEADS, *dict.fromkeys(case.auto.removeprefix("AutoModel") or "Backbone" for case in CASES)]
    names = [name for name in NAMES if any(name == row[0] for rows in shared.values() for row in rows)]
    for number, check in enumerate(shared, start=1):
        print(f"{number:>3}  {check.replace('_', ' ')}")
    width = max(map(len, names)) + 1
    print(f"\n{'':{width}} {'head':<24} " + " ".join(f"{number:>3}" for number in range(1, len(shared) + 1)))
    for name in names:
        for head in heads:
            cells = [rows.get((name, head)) for rows in shared.values()]
            if any(cells):
                marks = [cell_mark(cell) for cell in cells]
                print(f"{name:{width}} {head:<24} " + " ".join(f"{mark:>3}" for mark in marks))
    print("\nNumber of passed tests; '.' where the check is not about that head, F failed, S skipped.")
    print("Refused on purpose:")
    for (check, name), sentence in REFUSED.items():
        print(f"  {name}: {check} ({sentence!r})")
    print(f"Not run at length 65,536, which takes the square of the length: {', '.join(QUADRATIC)} (variants are).")
    found = holes(checks)
    print("\n".join(["", *found]) if found else "\nNo hole.")
    return 1 if found else 0


def cell_mark(outcomes: Counter | None) -> str:
    if not outcomes:
        return "."
    return "F" if outcomes["failed"] else "S" if outcomes["skipped"] else str(outcomes["passed"])


if __name__ == "__main__":
    sys.exit(main())
