#!/usr/bin/env python3
"""What a trained model learned: how its norms differ (eq. 9), how it uses its experts.

  python scripts/analyze.py --workdir=runs/widenet --out=analysis
  python scripts/analyze.py --workdir=runs/widenet --compare=runs/vit --out=analysis \
      --config.data.path=data/cifar10 --images=6

Writes norm_divergence.png (figs. 4 and 5, one line a model) and, for a model with experts,
expert_usage.png and expert_overlay.png (experts over images of the set), and analysis.json with all
the numbers. The set is the run's evaluation split unless changed. Drops are those of evaluation,
where capacity is mostly ample; --config.model.moe.capacity_factor_eval=1.2 shows training's.
Exit codes: 0 done, 2 bad input, 3 no whole checkpoint.
"""

import argparse
import json
import sys

from widenet_jax.cli.parser import Parser, exit_code_of, positive


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code_of(lambda: analyze(*parser().parse_known_args(arguments)))


def parser() -> Parser:
    own = Parser(__doc__)
    own.add_argument("--workdir", required=True, help="a run, or an exported directory")
    own.add_argument(
        "--compare", action="append", default=[], help="another one, for the divergence; repeatable"
    )
    own.add_argument("--out", required=True, help="a directory")
    own.add_argument("--images", type=positive, default=4, help="images in the overlay")
    own.add_argument("--json", action="store_true", help="print one JSON object")
    return own


def analyze(options: argparse.Namespace, changes: list[str]) -> None:
    from widenet_jax.checkpoint.checkpoints import absolute
    from widenet_jax.tools.analysis.report import analyze_model
    from widenet_jax.weights.trained import open_trained

    trained = open_trained(options.workdir, changes)
    others = [open_trained(place) for place in options.compare]
    out = absolute(options.out)
    out.mkdir(parents=True, exist_ok=True)
    facts = analyze_model(trained, others, out, num_images=options.images)
    (out / "analysis.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts) if options.json else report(facts, options.out))


def report(facts: dict, out: str) -> str:
    """For people."""
    lines = []
    for name, vectors in facts["norm_divergence"].items():
        means = {k: sum(v["block"]) / len(v["block"]) for k, v in vectors.items()}
        lines.append(f"{name}: divergence of gamma {means['gamma']:.4f}, beta {means['beta']:.4f}")
    if usage := facts.get("expert_usage"):
        lines.append("block  load of the experts; router entropy; dropped")
        for i, block in enumerate(usage["blocks"]):
            load = "  ".join(f"{share:.1%}" for share in usage["load"][i])
            lines.append(
                f"{block:>5}  {load}; {usage['router_entropy'][i]:.3f}; {usage['drop_rate'][i]:.2%}"
            )
        lines.append(
            f"tokens an expert would see in each block if even: {usage['tokens_if_even']:,.0f}"
        )
    return "\n".join([*lines, f"pictures and analysis.json: {out}"])


if __name__ == "__main__":
    sys.exit(main())
