"""Evaluates a trained model on any set of its kind, by the metrics of its task.

  python scripts/evaluate.py --workdir=runs/mine
  python scripts/evaluate.py --workdir=runs/mine --checkpoint=best
  python scripts/evaluate.py --workdir=exported/mine --out=evaluation \
      --config.data.source=image_folder --config.data.path=photos --config.data.eval_split=val
  python scripts/evaluate.py --workdir=runs/mnli --config.data.eval_split=dev_mismatched
  python scripts/evaluate.py --workdir=runs/mine --predictions=predictions.csv
  python scripts/evaluate.py --workdir=runs/imagenet --labels=real.json
  python scripts/evaluate.py --workdir=runs/imagenet --shots=10
  python scripts/evaluate.py --workdir=runs/bytes --file=my.txt --config.task.eval_memory_length=512

The set is the run's evaluation split unless fields change it. A classifier of images or texts is
measured by top-1, top-5 where there are more than 5 classes, balanced accuracy (the mean over
classes), each class, the confusions and the calibration error (15 bins). Its classes and the
classes of the set are matched by name, or by number where the set calls them 0 to V - 1, as in
ImageNet-V2. A set may have fewer of them; the model may still predict the others, unless --restrict
forbids it, as in the papers of ImageNet-A and ImageNet-R. --labels names a JSON file of sets of
right classes (ImageNet-ReaL): an object by file name; or a list, which has ImageNet's validation
files in the order of their numbers, and examples without files in theirs. It adds the share of
predictions that are in their sets; examples with empty sets are left out. --shots fits a linear
layer to so many images of each class of the training split, three times, by least squares on the
inputs of the last layer, and measures it on the evaluation split; its classes may be new to the
model. The 95% intervals are Wilson's of shares and of balanced accuracy, from the standard error
for mlm_accuracy (over sequences) and F1 (over questions), by Fisher's transform for correlations of
scores (Spearman's by Bonett and Wright 2000; none of 0, which stands for a model that gives one
score only), and by bootstrap for the loss (where examples differ, as the standard errors); they are
about the set's examples, not about other seeds.
--predictions has a row for each image or text: file, index, truth, prediction,
probability. --out gets evaluation.json; of classifiers also confusion.csv and confusion.png; of
question answering predictions.json, in which answers with a null score above
config.task.null_threshold are "", best_answers.json, in which none are, and null_scores.json, in
the form that the official scripts of SQuAD read. To find the best threshold, give them
best_answers.json with --na-prob-file null_scores.json. A language model gives bits a byte and
perplexity of a whole --file, in one row, so that each token has the whole memory;
--config.evaluation.batch_size=8 reads 8 parts at once.
Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

from widenet_jax.config.parser import Argv, Options, Parser, add_model_flags, positive, show
from widenet_jax.errors import raise_first
from widenet_jax.run.tables import beside, number, routing_rows, text_table
from widenet_jax.specs import resolve, task_spec, task_specs

if TYPE_CHECKING:
    from etils import epath

    from widenet_jax.nn.loop_settings import LoopSettings
    from widenet_jax.specs import TaskSpec
    from widenet_jax.trained import Trained

Rows = list[tuple[str, str]]  # of the table for people
FILES = ("evaluation.json", "confusion.csv", "confusion.png")
FILES += ("predictions.json", "best_answers.json", "null_scores.json")
WORST, CONFUSED = 5, 5  # rows of the report
# Flags of classifiers alone, and whether of images alone.
OF_CLASSIFIERS = {"shots": True, "restrict": True, "labels": False, "predictions": False}
SHARES = ("top_1", "top_5", "in_label_set", "balanced_accuracy")
ROWS = "--config.evaluation.batch_size="
# Fields that name a set, which --file takes the place of.
SETS = tuple(f"--config.data.{name}=" for name in ("source", "path", "train_split", "eval_split"))


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add_model_flags(parser)
    add = parser.add_argument
    add("--file", metavar="FILE", help="a text to measure a language model on")
    add("--out", metavar="DIR", help="where tables and a picture go")
    add("--predictions", metavar="FILE", help="a .csv file of a classifier's predictions")
    add("--labels", metavar="FILE", help="a .json file of sets of right classes")
    add("--restrict", action="store_true", help="choose among the set's classes alone")
    add("--shots", type=positive, metavar="N", help="images of a class to fit a layer to")
    return parser.run(evaluate, argv)


def evaluate(options: Options) -> None:
    from widenet_jax.files import absolute, check_output, replacing, without_nan, write_json
    from widenet_jax.inference.pretrained import open_model

    trained = open_model(options.workdir, options.fields, checkpoint=options.checkpoint)
    out = absolute(options.out) if options.out else None
    result = {"workdir": options.workdir, "step": trained.step}
    spec = task_spec(trained.config.task.name)
    raise_first(misfits(options, spec, images="image" in trained.task.batch_spec(1)))
    if options.predictions:
        from widenet_jax.inference.classification import HEADER

        header = ",".join(HEADER).encode()
        check_output(options.predictions, "--predictions", "predictions", header)
    if out:  # a mistake here would lose the work
        out.mkdir(parents=True, exist_ok=True)
    work = evaluate_classifier if spec.last_layer else evaluate_task
    work = evaluate_few_shot if options.shots else work
    with replacing(out, *FILES) if out else nullcontext() as new:
        rows = work(options, trained, result, new)
        if new:
            write_json(new / "evaluation.json", without_nan(result))
    rows = [("step", f"{trained.step:,}"), *loop_rows(trained.model.loop), *rows]
    show(options, result, text_table(rows))


def loop_rows(loop: "LoopSettings") -> Rows:
    """Returns the number of loops of each group, where it differs from that in training."""
    trained = sorted({loops for _, loops in loop.core if loops > 1})
    if loop.counts.eval in (0, *trained) and len(trained) < 2:
        return []
    text = f"{loop.counts.eval}; trained: {' and '.join(map(str, trained))}, {loop.counts.train}"
    return [("loops", text)] if loop.counts.eval else []


def misfits(options: Options, spec: "TaskSpec", *, images: bool) -> Iterator[str]:
    """Yields why a model of the task cannot be measured as the flags ask."""
    task = f"{options.workdir} holds a model of the task {spec.name}"
    if options.file and spec.open_file is None:
        own = " or ".join(other.name for other in task_specs() if other.open_file)
        yield f"{task}; --file measures one of {own}"
    for field in options.fields if options.file else ():
        if field.startswith(SETS):
            yield f"{field} and --file both say what to read; remove one of them"
    asked = [name for name in OF_CLASSIFIERS if getattr(options, name)]
    for name in asked:
        kind = "images" if OF_CLASSIFIERS[name] else "images or texts"
        if not spec.last_layer or (OF_CLASSIFIERS[name] and not images):
            yield f"{task}; --{name} takes a classifier of {kind}"
    if options.shots and len(asked) > 1:
        yield f"--shots fits other classifiers, and --{asked[1]} is about the model's; remove one"
    if options.predictions and not options.predictions.endswith(".csv"):
        yield f"--predictions={options.predictions}: give a name that ends in .csv"


def evaluate_classifier(
    options: Options, trained: "Trained", result: dict, out: "epath.Path | None"
) -> Rows:
    """Adds the accuracy, by class and with the confusions, to `result`; returns rows for people.

    Writes the confusions and the predictions.
    """
    import numpy as np

    from widenet_jax.data.labelled import Subset, labels_of
    from widenet_jax.files import write_bytes, write_text
    from widenet_jax.inference import classification, label_sets
    from widenet_jax.inference.over_source import bad_examples, open_source
    from widenet_jax.run.intervals import interval_text, wilson

    names, unit = trained.class_names, trained.task.unit
    source, transform = open_source(trained)
    sets = label_sets.read_label_sets(options.labels, names, source) if options.labels else None
    known = source.labels if isinstance(source, Subset) else range(len(names))
    if options.restrict:  # a set may name classes without an image
        known = sorted({*labels_of(source, np.arange(len(source)))})
    choices = known if options.restrict else range(len(names))
    found = classification.classify_source(trained, source, transform, choices)
    if options.predictions:
        content = classification.predictions_csv(names, source, found)
        write_bytes(options.predictions, content.encode(errors="surrogateescape"))
    accuracy = classification.accuracy_of(names, found, len(choices))
    result |= accuracy.as_json(unit)
    result |= bad_examples(source, result[unit])
    intervals = result["intervals"]
    if sets:
        result |= label_sets.set_accuracy(sets, found, options.labels)
        intervals["in_label_set"] = wilson(result["in_label_set"], result["judged"])
    shares = [name for name in SHARES if name in result]
    texts = {name: f"{result[name]:.2%}{interval_text(intervals[name])}" for name in shares}
    if sets:
        texts["in_label_set"] += " of {judged:,}; {left_out:,} left out".format_map(result)
    if out:
        write_text(out / "confusion.csv", classification.confusion_csv(accuracy))
        of_set = f"split {trained.config.data.eval_split}: {result[unit]:,} {unit}"
        title = f"{of_set}\ntop-1 {texts['top_1']}"
        classification.draw_confusion(accuracy, out / "confusion.png", title=title)
    worst = sorted(result["per_class"].items(), key=lambda item: item[1])[:WORST]
    confused = ", ".join(f"{a} for {b} ({n:,})" for a, b, n in accuracy.confused(CONFUSED))
    loss = interval_text(intervals["cross_entropy"], percent=False)
    data = trained.config.data
    fewer = f"{len(known):,} of the model's {len(names):,}; it chose among {len(choices):,}"
    classes = [getattr(source, "matched", "")] + [fewer] * (len(known) < len(names))
    return [
        ("split", f"{data.eval_split} of {data.path or data.source}"),
        (unit, f"{result[unit]:,} {getattr(source, 'part_of', '')}".strip()),
        *(("classes", text) for text in classes if text),
        *((name.replace("top_", "top-").replace("_", " "), text) for name, text in texts.items()),
        ("share of the largest class", f"{result['largest_class']:.2%}"),
        ("cross-entropy", f"{result['cross_entropy']:.4f}{loss}"),
        ("calibration error", f"{result['calibration_error']:.2%}"),
        ("hardest classes", ", ".join(f"{name} {share:.1%}" for name, share in worst)),
        ("taken for another", confused or "none"),
    ]


def evaluate_few_shot(
    options: Options, trained: "Trained", result: dict, out: "epath.Path | None"
) -> Rows:
    """Adds the accuracy of layers fitted to few images to `result`; returns rows for people."""
    from widenet_jax.inference.few_shot import few_shot
    from widenet_jax.run.intervals import interval_text

    found, data = few_shot(trained, options.shots), trained.config.data
    result |= found
    accuracy = f"{found['few_shot']:.2%}{interval_text(found['intervals']['few_shot'])}"
    return [
        ("split", f"{data.eval_split} of {data.path or data.source}; {data.train_split} to fit"),
        *((name, f"{found[name]:,}") for name in ("images", "classes", "fitted")),
        (f"{options.shots}-shot accuracy", accuracy),
        ("of each draw", ", ".join(f"{share:.2%}" for share in found["draws"])),
    ]


def evaluate_task(
    options: Options, trained: "Trained", result: dict, out: "epath.Path | None"
) -> Rows:
    """Adds the task's metrics, its baseline and the routing to `result`; returns rows for people.

    Writes the answers of a task with `answers` in its spec.
    """
    from widenet_jax.files import write_json
    from widenet_jax.inference.over_source import metrics_over_source
    from widenet_jax.run.intervals import ERROR, interval_text, metric_intervals

    spec, opened = task_spec(trained.config.task.name), None
    if options.file:
        if not any(field.startswith(ROWS) for field in options.fields):
            trained.config.evaluation.batch_size = trained.model.examples_per_group
        opened = resolve(spec.open_file)(options.file, trained.config.data.max_length, trained.info)
    metrics, others, rows, source = metrics_over_source(trained, opened)
    result |= metrics | others
    if out and spec.answers:
        for name, content in resolve(spec.answers)(trained.task, rows, source).items():
            write_json(out / name, content)
    shown = {name: value for name, value in metrics.items() if not name.endswith(ERROR)}
    text = {name: number(value) + beside(name, result) for name, value in shown.items()}
    if intervals := metric_intervals(metrics):
        result["intervals"] = intervals
        text |= {k: text[k] + interval_text(of, percent=False) for k, of in intervals.items()}
    return [(name.replace("_", " "), one) for name, one in text.items()] + routing_rows(result)
