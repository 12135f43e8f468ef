#!/usr/bin/env bash
# Trains WideNet-Tiny on real handwritten digits on this machine. Installs what it needs first.
#
#   scripts/quickstart.sh [--workdir=DIR] [--config.FIELD=VALUE ...]
#
# Run it again to resume a stopped run, or to report a finished one.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install ""
exec "$python" -m widenet_jax.main --config=configs/digits.py --workdir=runs/quickstart "$@"
