#!/usr/bin/env bash
# Brings .cache/trainers in line with requirements/trainers.txt: the trainers' packages over .venv's torch and the rest.
set -euo pipefail
cd "$(dirname "$0")/.."

env=.cache/trainers
hash=$(cat requirements/trainers.txt tools/trainers.sh .venv/.hs-extract-stamp | sha256sum | cut -c1-32)
if [ "$(cat "$env/.stamp" 2>/dev/null || true)" = "$hash" ]; then
    exit 0
fi
rm -rf "$env"
.venv/bin/python -m venv "$env"
shared=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$shared')" > "$own/shared.pth"
echo "[trainers] their packages, without their dependencies"
"$env/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps -r requirements/trainers.txt
echo "$hash" > "$env/.stamp"
