"""Runs widenet_jax/cli/plan.py; --help shows how."""

from widenet_jax.cli.plan import main

if __name__ == "__main__":
    raise SystemExit(main())
