#!/usr/bin/env bash
# Brings .venv in line with requirements/ and pyproject.toml. A stamp holding their hash makes the second call free.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
hash=$(cat requirements/*.txt pyproject.toml tools/venv.sh | sha256sum | cut -c1-32)
stamp="$venv/.hs-extract-stamp"
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$hash" ]; then
    exit 0
fi

# Two makes at once must not install into one folder at the same time.
exec 9>".venv.lock"
flock 9
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$hash" ]; then
    exit 0
fi

if ! [ -x "$venv/bin/python" ]; then
    for python in python3.11 python3.12 python3.13 python3; do
        if "$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            break
        fi
        python=
    done
    if [ -z "$python" ]; then
        echo "make venv: no Python 3.11 or newer with the venv module was found on PATH" >&2
        exit 1
    fi
    echo "creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet)
step() { echo "[venv] $*"; }
rm -f "$stamp"
step "torch"
"${pip[@]}" -r requirements/torch.txt
step "runtime and development packages"
"${pip[@]}" -r requirements/runtime.txt -r requirements/dev.txt
step "SGLang, without its CUDA stack"
"${pip[@]}" --no-deps -r requirements/sglang.txt
step "hs-extract itself, editable"
"${pip[@]}" --no-deps --no-build-isolation --editable .
echo "$hash" > "$stamp"
step "ready: $("$venv/bin/python" --version) in $venv"
