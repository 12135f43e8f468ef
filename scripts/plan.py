#!/usr/bin/env python3
"""What a model holds: parameter counts beside the paper's.

python scripts/plan.py --counts [--json]
"""

import argparse
import json

from widenet_jax.plan.counts import count_rows, counts_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--counts",
        action="store_true",
        required=True,
        help="parameters of every row of the paper's vision tables",
    )
    parser.add_argument("--json", action="store_true", help="a JSON list instead of a table")
    arguments = parser.parse_args()
    rows = count_rows()
    print(json.dumps(rows, indent=1) if arguments.json else counts_table(rows))


if __name__ == "__main__":
    main()
