# Sourced by the other scripts. Creates a virtual environment at .venv with the package and its
# requirements, and installs again when requirements.txt or pyproject.toml change.
#
#   PYTHON=python3.12 VENV=.venv-3.12 scripts/test.sh     choose interpreter and directory
#
# Sets $python to the interpreter of the environment.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=${VENV:-.venv}
python=$VENV/bin/python

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: no Python 3.11 or newer found (tried ${PYTHON:-python3, python3.13, python3.12, \
python3.11, python}); install one, or name it: PYTHON=/path/to/python3 $0" >&2
  return 2
}

# install EXTRAS: "" or "[test]"
install() {
  local stamp="$VENV/installed$1" base
  if [ ! -x "$python" ]; then
    base=$(find_python) || exit 2
    echo "making $VENV with $("$base" --version)" >&2
    "$base" -m venv "$VENV" || exit 2
  fi
  if [ ! -e "$stamp" ] || [ requirements.txt -nt "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "installing JAX, Flax and the rest of requirements.txt into $VENV (once: a minute or two," \
      "1.3 GB); to watch it: tail -f $VENV/pip.log" >&2
    "$python" -m pip install --disable-pip-version-check -r requirements.txt -e ".$1" \
      > "$VENV/pip.log" 2>&1 || { tail -n 5 "$VENV/pip.log" >&2
      echo "error: installing failed; the whole log is $VENV/pip.log" >&2; exit 2; }
    touch "$stamp"
  fi
}
