"""Runs widenet_jax/cli/sweep.py; --help shows how."""

from widenet_jax.cli.sweep import main

if __name__ == "__main__":
    raise SystemExit(main())
