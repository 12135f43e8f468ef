"""Predicts with a trained model: classes of images and texts, answers, masked words, more text.

  python scripts/predict.py --workdir=runs/mine photo.jpg other.png --top=5
  python scripts/predict.py --workdir=exported/mine photo.jpg --overlay=experts.png
  python scripts/predict.py --workdir=runs/mine photos/new/ 'more/*.webp' --out=found.csv
  python scripts/predict.py --workdir=runs/sst2 --text="A fine film." --text="A dull one."
  python scripts/predict.py --workdir=runs/mnli --text="It rains." --pair="It is dry."
  python scripts/predict.py --workdir=runs/squad --question="Who?" --context="Ada wrote it."
  python scripts/predict.py --workdir=runs/albert --fill="The capital of France is [MASK]."
  python scripts/predict.py --workdir=hf/albert-base-v2 --fill="It was a [MASK] day."
  python scripts/predict.py --workdir=runs/bytes --continue="It was" --temperature=0.8 --length=500

Each example is routed alone, so that its answer does not depend on the others. The overlay shows
which expert each patch of an image went to. Of images that cannot be read the others are predicted,
and the exit code is 2.
Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

from typing import TYPE_CHECKING

from widenet_jax.config.parser import (
    Argv,
    Options,
    Parser,
    add_model_flags,
    not_negative,
    positive,
    show,
)
from widenet_jax.errors import BadArgumentError, BadInputError
from widenet_jax.vision.prediction_files import predict_images, shares

if TYPE_CHECKING:
    from widenet_jax.inference.trained import Trained

# What a user gives -> the task whose models take it.
TASKS = {
    "images": "classification",
    "text": "text_classification",
    "question": "span",
    "fill": "masked_lm",
    "continue": "language_modeling",
}
FORMS = {
    "images": "image files",
    "text": "--text=TEXT",
    "question": "--question=TEXT --context=TEXT",
    "fill": '--fill="A [MASK] word"',
    "continue": '--continue="A beginning"',
}
# Flags that go with one kind only.
OF_KIND = {
    "pair": "text",
    "context": "question",
    **dict.fromkeys(("overlay", "out"), "images"),
    **dict.fromkeys(("temperature", "top_k", "top_p", "length", "seed"), "continue"),
}
LENGTH = 200  # tokens
# A row for --json, lines for people.
Shown = tuple[dict, list[str]]


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__, takes_fields=False)
    add = parser.add_argument
    add("images", nargs="*", metavar="IMAGE", help="image files, folders, '*.jpg'")
    add("--text", action="append", metavar="TEXT", help="to classify; may be repeated")
    add("--pair", action="append", metavar="TEXT", help="the second text of a --text")
    add("--question", metavar="TEXT", help="to answer from --context")
    add("--context", metavar="TEXT", help="holds the answer, maybe")
    add("--fill", action="append", metavar="TEXT", help="a text with one or more [MASK]")
    text = "of a run, or an exported model; for --fill also a BERT or ALBERT of Hugging Face"
    add_model_flags(parser, text)
    add("--top", type=positive, default=5, metavar="N", help="classes, spans or words to name")
    add("--overlay", metavar="PNG", help="draw expert choices over the images")
    text = "write the predictions of images to a .csv or .jsonl (JSON lines) file"
    add("--out", metavar="FILE", help=text)
    add("--continue", metavar="TEXT", help="a text for a language model to go on with")
    text = "of --continue: divides the logits; 0 takes the likeliest token (default 1)"
    add("--temperature", type=float, metavar="X", help=text)
    text = "of --continue: draw among so many of the likeliest tokens (default all)"
    add("--top_k", type=positive, metavar="K", help=text)
    text = "of --continue: draw among the likeliest tokens of this share (default 1)"
    add("--top_p", type=float, metavar="P", help=text)
    text = f"of --continue: tokens to draw (default {LENGTH})"
    add("--length", type=positive, metavar="N", help=text)
    add("--seed", type=not_negative, metavar="N", help="of the draws of --continue (default 0)")
    add("--json", action="store_true", help="print one JSON object")
    return parser.run(predict, argv)


def predict(options: Options) -> None:
    kind = kind_of(options)
    from widenet_jax.inference.public import open_model

    trained = open_model(options.workdir, checkpoint=options.checkpoint)
    if trained.config.task.name != TASKS[kind]:
        takes = {task: form for form, task in TASKS.items()}.get(trained.config.task.name)
        raise BadInputError(
            f"{options.workdir} holds a model of the task {trained.config.task.name}"
            + (f", which takes {FORMS[takes]}" if takes else "")
            + f"; for {FORMS[kind]} give the --workdir of a model of the task {TASKS[kind]}"
        )
    if kind == "images":
        return predict_images(options, trained)
    try:
        key, found = PREDICT[kind](options, trained)
    except BadArgumentError as error:
        flag = "continue" if (kind, error.name) == ("continue", "text") else error.name
        raise error.of_flag(flag) from None
    facts = {"workdir": options.workdir, "step": trained.step, key: [row for row, _ in found]}
    show(options, facts, "\n".join(line for _, lines in found for line in lines))


def kind_of(options: Options) -> str:
    """Returns which of `TASKS` the user gave.

    Raises:
      BadInputError: none or several, or a flag that does not go with it.
    """
    given = [kind for kind in TASKS if getattr(options, kind) not in (None, [])]
    if len(given) != 1:
        raise BadInputError(f"give {', or '.join(FORMS.values())}, and one of these only")
    for flag, kind in OF_KIND.items():
        if getattr(options, flag) not in (None, []) and given != [kind]:
            raise BadInputError(f"--{flag} goes with {FORMS[kind]}")
    if options.pair and len(options.pair) != len(options.text):
        numbers = f"{len(options.text)} --text and {len(options.pair)} --pair"
        raise BadInputError(f"{numbers}: give a --pair for each --text")
    if options.question is not None and options.context is None:
        raise BadInputError("--question needs --context=TEXT, the text that holds the answer")
    return given[0]


def predict_texts(options: Options, trained: "Trained") -> tuple[str, list[Shown]]:
    from widenet_jax.inference.classes import best, classifier
    from widenet_jax.text.predict import text_rows

    row_of, classify, found = text_rows(trained), classifier(trained), []
    for text, pair in zip(options.text, options.pair or [None] * len(options.text), strict=True):
        top = best(classify([row_of(text, pair)])[0], trained, options.top)
        row = {"text": text, **({} if pair is None else {"pair": pair}), "top": top}
        said = [text] if pair is None else [text, pair]
        found.append((row, [*said, *shares(top, "class")]))
    return "texts", found


def predict_answer(options: Options, trained: "Trained") -> tuple[str, list[Shown]]:
    from widenet_jax.text.predict import answer_question

    found = answer_question(trained, options.question, options.context, options.top)
    row = {"question": options.question, **found._asdict()}
    lines = [options.question, *shares(found.top, "text")]
    if found.null_score is not None:
        told = "an answer" if found.answer else "no answer"
        least = trained.config.task.null_threshold
        lines.append(f"  {told}: null score {found.null_score:.2f}, none above {least:g}")
    return "answers", [(row, lines)]


def predict_words(options: Options, trained: "Trained") -> tuple[str, list[Shown]]:
    from widenet_jax.text.predict import fill_masks

    found = []
    for text in options.fill:
        masks = fill_masks(trained, text, options.top)
        lines = [text]
        for number, top in enumerate(masks):
            lines += [f" [MASK] {number + 1}"] if len(masks) > 1 else []
            lines += shares(top, "word")
        found.append(({"text": text, "masks": masks}, lines))
    return "fills", found


def predict_more(options: Options, trained: "Trained") -> tuple[str, list[Shown]]:
    from widenet_jax.language.sampling import Sampling, continue_text

    given = {name: getattr(options, name) for name in ("temperature", "top_k", "top_p")}
    sampling = Sampling(**{name: value for name, value in given.items() if value is not None})
    length, beginning = options.length or LENGTH, getattr(options, "continue")
    text = continue_text(trained, beginning, sampling, length=length, seed=options.seed or 0)
    return "texts", [({"beginning": beginning, "text": text}, [text])]


PREDICT = {
    "text": predict_texts,
    "question": predict_answer,
    "fill": predict_words,
    "continue": predict_more,
}
