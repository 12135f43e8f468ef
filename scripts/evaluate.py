"""Runs widenet_jax/cli/evaluate.py; --help shows how."""

from widenet_jax.cli.evaluate import main

if __name__ == "__main__":
    raise SystemExit(main())
