"""Runs widenet_jax/cli/benchmark.py; --help shows how."""

from widenet_jax.cli.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())
