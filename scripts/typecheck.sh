#!/bin/sh
# mypy on an installed copy: it cannot follow the mapping that an editable installation uses.
set -eu

here=$(dirname -- "$0")
cd -- "$here/.."
python=${VENV:-.venv}/bin/python
case $python in /*) ;; *) python=$(pwd -P)/$python ;; esac

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM HUP
mkdir "$copy/source" "$copy/site"
# Building from a copy leaves no build/ in the checkout, whose stale files would otherwise reach the next wheel.
cp -R modeling tasks recipes hub_cards setup.cfg pyproject.toml README.md LICENSE "$copy/source"
cd "$copy/source"
"$python" -m pip install --quiet --no-deps --no-index --no-build-isolation --target "$copy/site" .
cd "$copy/site"
"$python" -m mypy --config-file "$copy/source/setup.cfg" --cache-dir "$copy/cache" -p neverscratch
