#!/usr/bin/env bash
# Another SGLang version beside that of .venv, for tests: `tools/sglang.sh V` unpacks its wheel into .cache/sglang/V, to be
# put on PYTHONPATH in front of .venv's packages, which it shares; `tools/sglang.sh --wheel V` only fetches the wheel.
# Prints the path. Exit code 3: the package index cannot be reached, or does not have it.
set -euo pipefail
cd "$(dirname "$0")/.."

only_wheel=
if [ "${1:-}" = --wheel ]; then
    only_wheel=1
    shift
fi
version=${1:?usage: tools/sglang.sh [--wheel] VERSION}
cache=$PWD/.cache/sglang
mkdir -p "$cache/wheels"

find_wheel() { find "$cache/wheels" -maxdepth 1 -name "sglang-$version-*.whl" -print -quit; }

# Two callers must not fetch or unpack the same at the same time.
exec 9>"$cache/$version.lock"
flock 9
wheel=$(find_wheel)
if [ -z "$wheel" ]; then
    fetch=$(mktemp -d "$cache/wheels/.fetch-XXXXXX")
    trap 'rm -rf "$fetch"' EXIT
    # For one Python and platform, whichever this is: only .py files are read or run.
    if ! .venv/bin/python -m pip --disable-pip-version-check --no-input download --quiet --no-deps --only-binary=:all: \
        --python-version 3.11 --platform manylinux_2_34_x86_64 --platform any --dest "$fetch" "sglang==$version" >&2; then
        echo "tools/sglang.sh: the wheel of sglang $version cannot be fetched" >&2
        exit 3
    fi
    mv "$fetch"/*.whl "$cache/wheels/"
    wheel=$(find_wheel)
fi
if [ -n "$only_wheel" ]; then
    echo "$wheel"
    exit 0
fi
if ! [ -d "$cache/$version" ]; then
    unpacked=$(mktemp -d "$cache/.unpack-XXXXXX")
    .venv/bin/python -m zipfile -e "$wheel" "$unpacked"
    mv "$unpacked" "$cache/$version"
fi
echo "$cache/$version"
