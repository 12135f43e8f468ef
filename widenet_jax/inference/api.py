"""Models in Python: open a trained one and use it, or build an untrained one.

    import widenet_jax as wj

    model = wj.load("runs/mine")  # a run's workdir, or an exported model
    model.predict(["a.jpg", "b.jpg"])
    model.features(["a.jpg"])

The names of this module are those of the package. Mistakes raise `errors.BadInputError`, a
ValueError.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import flax.linen as nn
import numpy as np
from absl import logging
from ml_collections import ConfigDict
from PIL import Image

from widenet_jax.config.files import configs_module
from widenet_jax.config.imports import import_files
from widenet_jax.errors import BadInputError, check_fields, check_whole
from widenet_jax.inference.classes import Rows, best, classifier, feature_reader
from widenet_jax.inference.model_card import describe_model
from widenet_jax.inference.public import open_model
from widenet_jax.inference.trained import Trained
from widenet_jax.language.sampling import Sampling, continue_text
from widenet_jax.nn import build
from widenet_jax.text.predict import Found, answer_question, fill_masks, text_rows
from widenet_jax.typing import PyTree
from widenet_jax.vision.predict import Picture, picture_of

BATCH = 32  # examples at a time: few enough for any machine's memory
# What models of each task offer.
METHODS = {
    "classification": ("predict(images)", "features(images)"),
    "text_classification": ("predict(texts)", "features(texts)"),
    "masked_lm": ("fill(texts)",),
    "span": ("answer(question, context)",),
    "language_modeling": ("continue_text(text)",),
}
# What the data decides, by `config.model.name`.
DECIDED = {
    "vision_transformer": {"num_classes": 1000},
    "text_encoder": {"vocab_size": 30_000, "head": "pretraining", "num_classes": 0},
    "language_model": {"vocab_size": 8_000},
}


def load(
    place: str | os.PathLike[str],
    *,
    checkpoint: str | int | None = None,
    imports: Sequence[str | os.PathLike[str]] = (),
) -> "Model":
    """Opens a checkpoint of a run, or an exported model.

    Args:
      place: a workdir; a directory that `scripts/export.py` wrote; or a directory with a BERT or
        ALBERT of Hugging Face that fills masks.
      checkpoint: of a run: "last", the newest that is intact, "best" or a step; None: the last.
      imports: the files that registered parts of the model or the task, where they have moved.

    Raises:
      BadInputError: there is no model, or no such checkpoint.
      RunFailedError: every checkpoint of the run is damaged, or the one that was asked for.
    """
    import_files(map(os.fspath, imports), flag="imports")
    chosen, said = None if checkpoint is None else str(checkpoint), logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)  # Orbax warns of a file that checkpoints need not have
    try:
        return Model(open_model(os.fspath(place), checkpoint=chosen))
    finally:
        logging.set_verbosity(said)


def build_model(variant: str, **decided: int | str) -> nn.Module:
    """Builds an untrained model, a module of Flax Linen.

    Its parameters are `module.init(key, inputs, train=False)["params"]`, and
    `module.apply({"params": params}, inputs, train=False)` gives its outputs and their aux.

    Args:
      variant: a name with options, as after the colon of a config: "widenet_b,experts=8" of images,
        "albert" of texts, "wt_s,ffn=moe" of language models.
      **decided: what the data and the task decide. Of images num_classes (1000); of texts
        vocab_size (30,000), head ("pretraining", or "classification" with num_classes, "span",
        "span_beam"); of language models vocab_size (8,000).

    Raises:
      BadInputError: an unknown name, option or field, or a value out of range.
    """
    section = configs_module("variants").model_section(variant)
    usual = DECIDED[section["name"]]
    check_fields(usual, decided, section=variant.partition(",")[0].strip())
    return build.build_model(section, **(usual | decided))


class Model:
    """A trained model. Each example is routed alone: no other changes its result.

    Attributes:
      place: the directory it was read from, with `@CHECKPOINT` where one was chosen.
      task: what it was trained for: "classification" (of images), "text_classification",
        "masked_lm", "span" or "language_modeling".
      class_names: label k is class_names[k]; empty for a task without classes.
      step: of the checkpoint.
      config: of its run.
      module: the module of Flax Linen.
      params: its parameters, host arrays.
    """

    def __init__(self, trained: Trained):
        self._trained = trained
        self.place: str = trained.place
        self.task: str = trained.config.task.name
        self.class_names: tuple[str, ...] = trained.class_names
        self.step: int = trained.step
        self.config: ConfigDict = trained.config
        self.module: nn.Module = trained.model
        self.params: PyTree = trained.params

    def __repr__(self) -> str:
        return f"Model({self.place!r}, {self.task}, {describe_model(self.config.model)})"

    def predict(
        self,
        inputs: Sequence[Picture | str],
        pairs: Sequence[str] | None = None,
        *,
        top: int = 5,
    ) -> list[list[dict[str, Any]]]:
        """Classifies images or texts.

        Args:
          inputs: of an image model, paths, images of Pillow, or arrays uint8 [height, width, 3] or
            [height, width], of any size: they are cropped as in evaluation. Of a text model, texts.
          pairs: the second text of each example, where the model was trained on pairs.
          top: classes to list.

        Returns:
          For each input [{"class": ..., "probability": ...}, ...], the most probable class first.

        Raises:
          BadInputError: an input cannot be read, or the model does not classify.
        """
        self._require("predict", top)
        batches = in_batches(self._rows(inputs, pairs))
        probs = itertools.chain.from_iterable(map(self._classify, batches))
        return [best(of_one, self._trained, top) for of_one in probs]

    def features(
        self, inputs: Sequence[Picture | str], pairs: Sequence[str] | None = None
    ) -> np.ndarray:
        """Returns what the last layer of a classifier reads, such as pooled tokens.

        Args:
          inputs, pairs: as of `predict`.

        Returns:
          float32 [n, D], a row for each input.

        Raises:
          BadInputError: as `predict`.
        """
        self._require("features")
        found = [self._read_features(rows) for rows in in_batches(self._rows(inputs, pairs))]
        return np.concatenate([np.zeros((0, self.config.model.embed_dim), np.float32), *found])

    def fill(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[dict[str, Any]]]]:
        """Returns for each text, and each [MASK] in it, the most probable words.

        A word is {"word": ..., "probability": ...}; "##" begins the continuation of a word.

        Raises:
          BadInputError: a text has no [MASK], or the model was not trained to fill masks.
        """
        self._require("fill", top)
        check_list(texts)
        return [fill_masks(self._trained, text, top) for text in texts]

    def answer(self, question: str, context: str, *, top: int = 5) -> Found:
        """Finds the answer to a question in a context of any length.

        Returns:
          answer, "" where the model says that there is none; null_score; and top, the best spans.

        Raises:
          BadInputError: a text is empty, or the model was not trained to answer questions.
        """
        self._require("answer", top)
        return answer_question(self._trained, question, context, top)

    def continue_text(
        self,
        text: str,
        *,
        length: int = 200,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Returns a text with its continuation by a language model.

        Args:
          text: the beginning.
          length: tokens to draw.
          temperature: divides the logits; 0 takes the likeliest token.
          top_k: draws among so many of the likeliest tokens; 0: all.
          top_p: draws among the likeliest tokens of this share.
          seed: of the draws.

        Raises:
          BadInputError: an empty text, a number out of range, or not a language model.
        """
        self._require("continue_text")
        sampling = Sampling(temperature, top_k, top_p)
        return continue_text(self._trained, text, sampling, length=length, seed=seed)

    @cached_property
    def _classify(self) -> Callable[[Rows], np.ndarray]:
        return classifier(self._trained)

    @cached_property
    def _read_features(self) -> Callable[[Rows], np.ndarray]:
        return feature_reader(self._trained)

    def _require(self, method: str, top: int = 1) -> None:
        """Raises BadInputError unless models of this task have the method, and top is 1, 2, ..."""
        check_whole("top", top, least=1)
        offered = METHODS[self.task]
        if method not in [name.partition("(")[0] for name in offered]:
            raise BadInputError(
                f"{self.place} holds a model of the task {self.task}, which has no {method}(); "
                f"use {' or '.join(offered)}"
            )

    def _rows(
        self, inputs: Sequence[Picture | str], pairs: Sequence[str] | None
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Returns the arrays of each input, as in a batch."""
        check_list(inputs)
        if self.task == "classification":
            if pairs is not None:
                raise BadInputError(f"{self.place} classifies images: leave pairs out")
            return ({"image": picture_of(image, self._trained)} for image in inputs)
        pairs = [None] * len(inputs) if pairs is None else pairs
        check_list(pairs)
        if len(pairs) != len(inputs):
            numbers = f"{len(inputs)} texts and {len(pairs)} pairs"
            raise BadInputError(f"{numbers}: give a pair for each text")
        return map(text_rows(self._trained), inputs, pairs)


def check_list(inputs: object) -> None:
    """Raises BadInputError where one input stands for a list of them."""
    if isinstance(inputs, str | os.PathLike):
        raise BadInputError(f"{inputs!r} is one input: give a list, as in [{inputs!r}]")
    shape = getattr(inputs, "shape", ())
    if isinstance(inputs, Image.Image) or (len(shape) == 3 and shape[2] in (1, 3)):
        size = "x".join(map(str, shape or inputs.size))
        raise BadInputError(f"what was given ({size}) is one image: give a list, as in [image]")


def in_batches(
    rows: Iterator[Mapping[str, np.ndarray]],
) -> Iterator[list[Mapping[str, np.ndarray]]]:
    """Yields lists of at most BATCH examples."""
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch
