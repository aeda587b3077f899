#!/usr/bin/env bash
# Make the environment in $VENV, or bring the one that is there up to date. Called by the Makefile.
set -euo pipefail
PYTHON="${PYTHON:-python3}" VENV="${VENV:-.venv}" TORCH="${TORCH:-2.13.0}" TRITON="${TRITON:-3.6.0}"
py="$VENV/bin/python"

[ -x "$py" ] || "$PYTHON" -m venv "$VENV"

has() { "$py" -c "import importlib.metadata as m, sys; sys.exit(0 if m.version('$1').split('+')[0].startswith('$2') else 1)" 2>/dev/null; }

# An environment that has a torch of its own keeps it.
has torch "" || "$py" -m pip install "torch==$TORCH"
has triton "" || "$py" -m pip install "triton==$TRITON" "numpy<2.4"
has setuptools "" || "$py" -m pip install "setuptools>=70"

wants="pytest xdist:pytest-xdist hypothesis ruff mypy transformers"
missing=""
for w in $wants; do
  has "${w#*:}" "" || missing="$missing ${w#*:}"
done
if [ -n "$missing" ] || ! has numpy ""; then
  "$py" -m pip install -e ".[tests]" "triton==$("$py" -c 'import importlib.metadata as m; print(m.version("triton"))')"
else
  # Everything is there: only the package itself, which needs no registry.
  "$py" -m pip install --no-deps --no-build-isolation -q -e .
fi
