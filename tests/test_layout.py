"""Who may import whom: the direction of the house, and what remote code allows."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("modeling", "tasks", "recipes", "hub_cards")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODELING = [path for path in FILES if path.is_relative_to(ROOT / "modeling")]
BY_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def imports(path: Path) -> list[tuple[str, int, ast.stmt, bool]]:
    """(module, number of dots, statement, whether it runs when the file is imported) of each import in a file."""
    found = []

    def visit(node: ast.AST, at_import: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, 0, child, at_import) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                names = [alias.name for alias in child.names]
                base = child.module or ""
                # `from neverscratch import tasks` and `from .. import tasks` name the package last.
                modules = [f"{base}.{name}".strip(".") for name in names] if base in ("", "neverscratch") else [base]
                found.extend((module, child.level, child, at_import) for module in modules)
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, at_import and not inside)

    visit(ast.parse(path.read_text()), True)
    return found


def our_packages(path: Path) -> set[tuple[str, bool]]:
    """Our packages that a file imports, other than its own, each with whether at import time."""
    package = path.relative_to(ROOT).parts[0]
    depth = len(path.relative_to(ROOT).parts) - 1
    found = set()
    for module, dots, _, at_import in imports(path):
        parts = module.split(".")
        if dots == 0 and parts[0] == "neverscratch" and len(parts) > 1:
            found.add((parts[1], at_import))
        elif dots > depth:
            found.add((parts[0], at_import))
    return {(name, at_import) for name, at_import in found if name != package}


@BY_FILE
def test_no_absolute_import_of_a_root_folder(path):
    for module, dots, _, _ in imports(path):
        assert dots or module.split(".")[0] not in PACKAGES, f"{path}: import neverscratch.{module} instead"


def test_tests_import_the_installed_package():
    for path in (ROOT / "tests").rglob("*.py"):
        test_no_absolute_import_of_a_root_folder(path)


@BY_FILE
def test_direction(path):
    package = path.relative_to(ROOT).parts[0]
    allowed = {"modeling": set(), "tasks": set(), "recipes": {"modeling", "tasks"}, "hub_cards": set()}[package]
    for name, at_import in our_packages(path):
        if path == ROOT / "recipes" / "cli.py" and name == "hub_cards":
            assert not at_import, (
                "recipes/cli.py imports hub_cards inside its functions, so that training needs no card"
            )
        else:
            assert name in allowed, f"{path} imports {name}"


def test_modeling_is_flat():
    assert all(path.parent == ROOT / "modeling" for path in MODELING)


@pytest.mark.parametrize("path", MODELING, ids=lambda path: path.name)
def test_modeling_imports_only_siblings_and_what_every_reader_has(path):
    """Each other package would be demanded of everyone who loads a checkpoint."""
    usual = {"torch", "numpy", "transformers", "huggingface_hub"} | set(sys.stdlib_module_names)
    for module, dots, statement, _ in imports(path):
        if dots == 0:
            assert module.split(".")[0] in usual, f"{path.name} imports {module}"
        else:
            assert isinstance(statement, ast.ImportFrom) and statement.module and "." not in statement.module
            assert dots == 1 and (path.parent / f"{statement.module}.py").is_file(), f"{path.name} imports {module}"
