#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a script with a virtual environment's Python, or skips when make_venv.py could not make it.
#   in_venv.sh VENV SCRIPT ARGUMENT...     the script also gets --python=VENV/bin/python
set -euo pipefail

venv=$1
script=$2
shift 2
if [[ ! -f $venv/ferry-requirements.sha256 ]]; then
  echo "SKIP: the virtual environment ${venv##*/} could not be made"
  exit 77
fi
exec "$venv/bin/python" "$script" --python="$venv/bin/python" "$@"
