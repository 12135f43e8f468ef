"""Measures a trained model: how its norms differ (eq. 9), how it uses experts and hidden units.

  python scripts/analyze.py --workdir=runs/widenet --out=analysis
  python scripts/analyze.py --workdir=runs/widenet --compare=runs/vit --out=analysis \
      --config.data.path=data/cifar10 --images=6
  python scripts/analyze.py --workdir=runs/widenet_4 --out=analysis

Writes to --out: norm_divergence.png (figs. 4 and 5, one line for each model); for a model with
experts expert_usage.png, expert_shares.png (each block's shares of the gates, sorted),
expert_co_occurrence.png (which experts see the same tokens) and, of images, expert_overlay.png (the
experts of each patch, over images of the set) or, of texts, expert_kinds.png (the experts of
frequent and rare tokens, beginnings and continuations of words, punctuation, digits, special
tokens); for a model with dense layers of ReLUs active_units.png (how many of them are above 0); for
a model that loops loops.png (states, loss and choices of experts, loop by loop; it evaluates the
model once for each of several numbers of loops); and analysis.json with all numbers.
The set is the run's evaluation split unless fields change it. Tokens are dropped as in evaluation,
where capacity is mostly ample; --config.model.moe.capacity_factor_eval=1.2 shows the drops of
training. Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

from widenet_jax.config.parser import Argv, Options, Parser, add_model_flags, positive, show
from widenet_jax.run.tables import text_table

FILES = ("analysis.json", "active_units.png", "expert_*.png", "loops.png", "norm_divergence.png")
MOST_EXPERTS = 16  # that are printed one by one; analysis.json has all


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add_model_flags(parser)
    add = parser.add_argument
    add("--compare", action="append", default=[], metavar="DIR", help="more models, for eq. 9")
    add("--out", required=True, metavar="DIR", help="where the files go")
    add("--images", type=positive, default=4, metavar="N", help="images in the overlay")
    return parser.run(analyze, argv)


def analyze(options: Options) -> None:
    from widenet_jax.files import absolute, replacing, without_nan, write_json
    from widenet_jax.inference.trained import open_trained
    from widenet_jax.ops.analysis.report import analyze_model

    trained = open_trained(options.workdir, options.fields, checkpoint=options.checkpoint)
    others = [open_trained(place) for place in options.compare]
    out = absolute(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out, *FILES) as new:
        result = analyze_model(trained, others, new, num_images=options.images)
        write_json(new / "analysis.json", without_nan(result))
    show(options, result, report(result, options.out))


def report(result: dict, out: str) -> str:
    """Returns the main numbers as lines for people."""
    lines = []
    for name, vectors in result["norm_divergence"].items():
        means = (f"{k} {sum(v['block']) / len(v['block']):.4f}" for k, v in vectors.items())
        lines.append(f"{name}: divergence of {', '.join(means)}")
    if active := result.get("active_units"):
        means = ", ".join(f"{mean:.1f}" for mean in active["mean"])
        lines.append(f"active units of {active['of']:,} in blocks {active['blocks']}: {means}")
    if usage := result.get("expert_usage"):
        rows = [("block", "load of the experts", "router entropy (nats)", "dropped")]
        columns = [usage[name] for name in ("blocks", "load", "router_entropy", "drop_rate")]
        for block, shares, entropy, dropped in zip(*columns, strict=True):
            load = "  ".join(f"{share:.1%}" for share in shares)
            if len(shares) > MOST_EXPERTS:
                load = f"{min(shares):.2%} to {max(shares):.2%} for {len(shares)} experts"
            rows.append((f"{block}", load, f"{entropy:.3f}", f"{dropped:.2%}"))
        even = f"{usage['tokens_if_even']:,.0f}"
        lines += [text_table(rows), f"tokens an expert would see in each block if even: {even}"]
    if loops := result.get("loops"):
        lines += loop_lines(loops)
    lines = lines or ["the blocks share their norms, and there are no experts: nothing to draw"]
    return "\n".join([*lines, f"pictures and analysis.json: {out}"])


def loop_lines(loops: dict) -> list[str]:
    """Returns what loops do as a table, and lines."""
    names = ("cosine", "norm_ratio", "first_changes", "first_changes_by_chance", "all_change")
    rows = [("layer", "loop", *(name.replace("_", " ") for name in names))]
    for place, of in loops["places"].items():
        columns = [of.get(name, [None] * len(of["cosine"])) for name in names]
        for loop, values in enumerate(zip(*columns, strict=True), start=2):
            shown = ("-" if value is None else f"{value:.3f}" for value in values)
            rows.append((place, f"{loop}", *shown))
    lines = [text_table(rows)]
    for place, of in loops["places"].items():
        if "load_spread" in of:
            each = ", ".join(f"{value:.2f}" for value in of["load_spread"])
            of_all = of["load_spread_of_all"]
            lines.append(
                f"layer {place}: load's deviation / mean {each}; of all loops {of_all:.2f}"
            )
    losses = ", ".join(f"{number}: {loss:.4f}" for number, loss in loops["losses"].items())
    lines.append(f"{loops['metric']} by number of loops (trained: {loops['loops']}): {losses}")
    if forced := loops.get("first_routing"):
        lines.append(f"{loops['metric']} with the experts of the first loop: {forced:.4f}")
    return lines + loops["notes"]
