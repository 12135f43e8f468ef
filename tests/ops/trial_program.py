"""Stands in for a training run, and ends within seconds.

It takes main's arguments, writes config.json, metrics.jsonl and result.json as a run does, resumes
from its metrics, and answers SIGTERM as a run does: it exits with code 143. Seed 13 fails; seed 14
meets numbers that are not finite.
"""

import json
import re
import signal
import sys
import time
from pathlib import Path

STEPS = 9


def command(trial, workdir: str) -> list[str]:
    """Takes the place of `Trial.command`; hands over the config, as the program has no packages."""
    from widenet_jax.config.files import load_config
    from widenet_jax.inference.pretrained_config import set_fields

    arguments = trial.arguments(workdir)
    config = set_fields(load_config(trial.config), arguments[2:], workdir=workdir)
    stored = f"--stored={json.dumps(config.to_dict())}"
    return [sys.executable, "-S", __file__, stored, *arguments]


def main() -> None:
    values = dict(re.findall(r"--(?:config\.)?([\w.]+)=(.*)", "\n".join(sys.argv[1:])))
    workdir = Path(values["workdir"])
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "starts").open("a").write("x")
    (workdir / "config.json").write_text(values["stored"])
    (workdir / "environment.json").write_text('[{"devices": ["cpu"], "git": {"commit": "abc"}}]')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if values.get("seed") == "13":
        sys.exit("starting\nfailed: unlucky")
    if values.get("seed") == "14":
        (workdir / "failed").mkdir(exist_ok=True)
        print("failed: the loss is not finite", file=sys.stderr)
        sys.exit(3)
    rate = float(values.get("optimizer.learning_rate", 0.5))
    pause = float(values.get("optimizer.weight_decay", 0.0))  # seconds a step
    names = ("accuracy", "perplexity", "mlm_loss", "f1", "exact", "best_f1", "best_exact")
    scores = {"cross_entropy": 1.0} | dict.fromkeys(names, rate)
    metrics = workdir / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    for step in range(done + 1, STEPS + 1):
        time.sleep(pause)
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "split": "eval"} | scores) + "\n")
    result = {f"test_{name}": value for name, value in scores.items()}
    result |= {"primary_metric": {"name": "accuracy", "higher_is_better": True}, "unit": "images"}
    result |= {"params": 7, "params_sha256": f"of {sorted(values)}"}
    (workdir / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
