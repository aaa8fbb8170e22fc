"""Fixtures of the tiny comparison."""

import copy

import pytest
from tiny_recipe import RAW

from neverscratch.recipes.config import Recipe, parse_recipe


@pytest.fixture
def raw_recipe() -> dict:
    """The recipe as it stands in YAML; a test may change it."""
    return copy.deepcopy(RAW)


@pytest.fixture
def recipe(raw_recipe) -> Recipe:
    return parse_recipe(raw_recipe, "tiny")
