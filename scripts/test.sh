#!/usr/bin/env bash
# Runs the tests, with all set-up of its own. Arguments go to pytest: --slow, -k NAME, tests/moe ...
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install "[test]"
exec "$python" -m pytest "$@"
