"""Runs widenet_jax/cli/predict.py; --help shows how."""

from widenet_jax.cli.predict import main

if __name__ == "__main__":
    raise SystemExit(main())
