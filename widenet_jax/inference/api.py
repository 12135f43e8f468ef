"""Models in Python: open a trained one and use it, or build an untrained one.

    import widenet_jax as wj

    model = wj.load("runs/mine")  # a run's workdir, or an exported model
    model.predict(["a.jpg", "b.jpg"])
    model.features(["a.jpg"])

The package exports the names of this module. Mistakes raise `errors.BadInputError`, a
ValueError.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import flax.linen as nn
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from widenet_jax.config.imports import configs_module, import_files
from widenet_jax.errors import BadInputError, check_fields, check_whole, naming_arguments
from widenet_jax.inference.model_card import describe_model
from widenet_jax.inference.pretrained import open_model
from widenet_jax.nn import build
from widenet_jax.specs import model_spec, resolve, task_spec
from widenet_jax.trained import Rows, Trained, best, classifier, features, over_rows, scorer
from widenet_jax.typing import PyTree

BATCH = 32  # examples at a time: few enough for any machine's memory


@naming_arguments(workdir="place")
def load(
    place: str | os.PathLike[str],
    *,
    checkpoint: str | int | None = None,
    imports: Sequence[str | os.PathLike[str]] = (),
) -> "Model":
    """Opens a checkpoint of a run, or an exported model.

    Args:
      place: a workdir; a directory that `scripts/export.py` wrote; the name of a model that comes
        with the package; or public weights: a ViT of Google, timm or Hugging Face, or a directory
        with a BERT or ALBERT of Hugging Face that fills masks.
      checkpoint: of a run: "last", the newest that is intact, "best" or a step; None: the last.
      imports: the files that registered parts of the model or the task, where they have moved.

    Raises:
      BadInputError: there is no model, or no such checkpoint.
      RunFailedError: every checkpoint of the run is damaged, or the one that was asked for.
    """
    import_files(imports, flag="imports")
    chosen, verbosity = None if checkpoint is None else str(checkpoint), logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)  # Orbax warns of a file that checkpoints need not have
    try:
        return Model(open_model(os.fspath(place), checkpoint=chosen))
    finally:
        logging.set_verbosity(verbosity)


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
    usual = model_spec(section["name"]).usual
    check_fields(usual, decided, section=variant.partition(",")[0].strip())
    return build.build_model(section, **(usual | decided))


class Model:
    """A trained model. Each example is routed alone: no other changes its result.

    Attributes:
      place: the directory it was read from, with `@CHECKPOINT` where one was chosen.
      task: what it was trained for: "classification" (of images), "text_classification",
        "text_regression", "masked_lm", "span" or "language_modeling".
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
        self, inputs: Sequence[Any], pairs: Sequence[str] | None = None, *, top: int = 5
    ) -> list[list[dict[str, Any]]]:
        """Classifies images or texts.

        Args:
          inputs: of an image model, paths, bytes of files, images of Pillow, or arrays uint8
            [height, width, 3] or [height, width], of any size: they are cropped as in evaluation.
            Of a text model, texts.
          pairs: the second text of each example, where the model was trained on pairs.
          top: classes to list.

        Returns:
          For each input [{"class": ..., "probability": ...}, ...], the most probable class first.

        Raises:
          BadInputError: an input cannot be read, or the model does not classify.
        """
        batches = self._batches("predict", inputs, pairs, top)
        probs = itertools.chain.from_iterable(map(self._classify, batches))
        return [best(of_one, self._trained, top) for of_one in probs]

    def features(self, inputs: Sequence[Any], pairs: Sequence[str] | None = None) -> np.ndarray:
        """Returns what the last layer of a classifier reads, such as pooled tokens.

        It comes after the pooling and, where the model has it, the pre-logits layer or the pooler.

        Args:
          inputs, pairs: as of `predict`.

        Returns:
          float32 [n, D], a row for each input.

        Raises:
          BadInputError: as `predict`.
        """
        found = map(self._read_features, self._batches("features", inputs, pairs))
        return np.concatenate([np.zeros((0, self.config.model.embed_dim), np.float32), *found])

    def score(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> np.ndarray:
        """Returns the scores of texts, on the scale of the labels in training: float32 [n].

        Args:
          texts, pairs: as of `predict`.

        Raises:
          BadInputError: as `predict`, unless the model was trained on scores.
        """
        found = map(self._score, self._batches("score", texts, pairs))
        return np.concatenate([np.zeros(0, np.float32), *found])

    def fill(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[dict[str, Any]]]]:
        """Returns for each text, and each [MASK] in it, the most probable words.

        A word is {"word": ..., "probability": ...}; "##" begins the continuation of a word.

        Raises:
          BadInputError: a text has no [MASK], or the model was not trained to fill masks.
        """
        fill = self._method("fill", top, texts)
        return [fill(self._trained, text, top) for text in texts]

    def answer(self, question: str, context: str, *, top: int = 5) -> Any:
        """Finds the answer to a question in a context of any length.

        Returns:
          answer, "" where the model says that there is none; null_score; and top, the best spans.

        Raises:
          BadInputError: a text is empty, or the model was not trained to answer questions.
        """
        return self._method("answer", top)(self._trained, question, context, top)

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
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        write = self._method("continue_text")
        return write(self._trained, text, length=length, seed=seed, **how)

    @cached_property
    def _classify(self) -> Callable[[Rows], np.ndarray]:
        return classifier(self._trained)

    @cached_property
    def _score(self) -> Callable[[Rows], np.ndarray]:
        return scorer(self._trained)

    @cached_property
    def _read_features(self) -> Callable[[Rows], np.ndarray]:
        return over_rows(self._trained, partial(features, task_spec(self.task).last_layer))

    def _batches(
        self, method: str, inputs: Sequence[Any], pairs: Sequence[str] | None, top: int = 1
    ) -> Iterator[Rows]:
        """Yields the rows of at most BATCH examples at a time; checks the arguments first."""
        rows = self._method(method, top, inputs)(self._trained, inputs, pairs)
        return iter(lambda: list(itertools.islice(rows, BATCH)), [])

    def _method(self, name: str, top: int = 1, inputs: object = ()) -> Callable[..., Any]:
        """Returns the function of the task's spec that does the work of a method.

        Raises:
          BadInputError: models of this task have no such method, top is not 1, 2, ..., or one input
            stands for a list of them.
        """
        check_whole("top", top, least=1)
        methods = task_spec(self.task).methods
        use = f"; use {' or '.join(f'{other}()' for other in methods)}" if methods else ""
        lacks = f"{self.place} holds a model of the task {self.task}, which has no {name}(){use}"
        if name not in methods:
            raise BadInputError(lacks)
        if isinstance(inputs, str | os.PathLike):
            raise BadInputError(f"{inputs!r} is one input: give a list, as in [{inputs!r}]")
        return resolve(methods[name])
