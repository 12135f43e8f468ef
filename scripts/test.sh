#!/usr/bin/env bash
# Installs what the tests need and runs them. Arguments go to pytest: --slow, -k NAME, tests/moe ...
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install "[test]"
exec "$python" -m pytest "$@"
