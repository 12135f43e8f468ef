"""Text that a language model writes: sampling token by token."""

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.corpus.tokenizer import printable
from widenet_jax.errors import BadArgumentError, check_whole, refusing
from widenet_jax.nn.build import with_implementation
from widenet_jax.step import forward
from widenet_jax.trained import Predictions, Trained
from widenet_jax.typing import Array, PyTree

LENGTH = 200  # tokens


@dataclass(frozen=True)
class Sampling:
    """How to draw a token from the logits.

    Attributes:
      temperature: divides the logits; 0 takes the likeliest token.
      top_k: only so many of the likeliest tokens may be drawn; 0: all.
      top_p: only the likeliest tokens whose probabilities add up to this share may be drawn, the
        one that reaches it among them (Holtzman et al. 2020, arXiv:1904.09751). Probabilities are
        those after temperature and top_k.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Raises BadArgumentError where a number is out of range."""
        check_whole("top_k", self.top_k, least=0)
        for name, value, fits, problem in (
            ("temperature", self.temperature, lambda x: 0 <= x < np.inf, "must be 0 or more"),
            ("top_p", self.top_p, lambda x: 0 < x <= 1, "must be above 0 and at most 1"),
        ):
            if not (isinstance(value, Real) and fits(value)):
                raise BadArgumentError(name, value, problem)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Returns the probability of each token to be drawn: float64 [V].

        Of equal logits the lower token counts as the likelier.
        """
        logits = np.asarray(logits, np.float64)
        order = np.argsort(-logits, kind="stable")
        if self.temperature == 0:
            return np.eye(1, len(logits), order[0])[0]
        kept = order[: self.top_k or None]
        shares = np.exp((logits[kept] - logits[order[0]]) / self.temperature)
        shares /= shares.sum()
        before = np.cumsum(shares) - shares
        shares = np.where(before < self.top_p, shares, 0.0)
        found = np.zeros(len(logits))
        found[kept] = shares / shares.sum()
        return found

    def draw(self, logits: np.ndarray, rng: np.random.Generator) -> int:
        """Draws a token."""
        cumulative = np.cumsum(self.probabilities(logits))
        # The sum may miss 1 by a rounding error.
        return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def reader(trained: Trained) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that reads tokens after the tokens of its earlier calls.

    It takes int32 [n], n >= 1, and returns the logits of the next token: float32 [V].
    """
    has_memory = trained.task.eval_carry_spec(1)
    return read_with_memory(trained) if has_memory else read_in_windows(trained)


def read_in_windows(trained: Trained) -> Callable[[np.ndarray], np.ndarray]:
    """Returns `reader` of a model without a memory: it sees the latest window of tokens.

    All of the window is computed for each token, so that one length is compiled.
    """
    params, latest = jax.device_put(trained.params), np.zeros(0, np.int32)
    window = trained.config.data.max_length

    @jax.jit
    def logits(params: PyTree, tokens: Array, last: Array) -> Array:
        outputs, _ = forward(trained.model, params, {"tokens": tokens[None]})
        return outputs["logits"][0, last]

    def read(tokens: np.ndarray) -> np.ndarray:
        nonlocal latest
        latest = np.concatenate([latest, tokens])[-window:]
        # No token sees the padding after it.
        padded = np.pad(latest, (0, window - len(latest)))
        return np.asarray(logits(params, padded, len(latest) - 1))

    return read


def read_with_memory(trained: Trained) -> Callable[[np.ndarray], np.ndarray]:
    """Returns `reader` of a model with a memory.

    Whole windows are read first, then tokens one by one, so that only two lengths are compiled.
    """
    params, window = jax.device_put(trained.params), trained.config.data.max_length
    # A kernel for whole windows does not take single tokens.
    model = with_implementation(trained.model, "auto")
    spec = trained.task.eval_carry_spec(1)
    carry = {name: jnp.zeros(x.shape, x.dtype) for name, x in spec.items()}

    @jax.jit
    def step(params: PyTree, tokens: Array, carry: dict[str, Array]) -> tuple:
        outputs, _ = forward(model, params, {"tokens": tokens[None], **carry})
        return outputs["logits"][0, -1], {name: outputs[name] for name in carry}

    def read(tokens: np.ndarray) -> np.ndarray:
        nonlocal carry
        whole = len(tokens) // window * window
        for part in [*tokens[:whole].reshape(-1, window), *tokens[whole:, None]]:
            logits, carry = step(params, part, carry)
        return np.asarray(logits)

    return read


def sample(
    trained: Trained, prompt: np.ndarray, sampling: Sampling, *, length: int, seed: int
) -> Iterator[int]:
    """Yields `length` tokens that continue a prompt; the same seed gives the same tokens.

    Args:
      trained: a language model. Its memory, if any, has `config.task.eval_memory_length` rows.
      prompt: int32 [n], n >= 1.
      sampling: how each token is drawn.
      length: number of tokens.
      seed: of the draws.
    """
    read, rng = reader(trained), np.random.default_rng(seed)
    latest = prompt
    for _ in range(length):
        token = sampling.draw(read(latest), rng)
        yield token
        latest = np.array([token], np.int32)


def continue_text(
    trained: Trained, text: str, *, length: int = LENGTH, seed: int = 0, **how: float
) -> str:
    """Returns a text with its continuation by `length` tokens, safe to print.

    `how` are the fields of `Sampling`.

    Raises:
      BadArgumentError: the text is empty, or a number is out of range.
      BadInputError: the text has half a character.
    """
    sampling = Sampling(**how)
    if not isinstance(text, str):
        raise BadArgumentError("text", text, "must be one text, such as 'It was'")
    check_whole("length", length, least=1)
    check_whole("seed", seed, least=0)
    tokenizer = trained.tokenizer
    if tokenizer:
        prompt = tokenizer.encode(text)
    else:  # the bytes that the user gave, even where they are no UTF-8
        with refusing(f"text={text!r} cannot be continued", UnicodeEncodeError):
            prompt = np.frombuffer(os.fsencode(text), np.uint8).astype(np.int32)
    if not len(prompt):
        raise BadArgumentError("text", text, "is empty: give at least one word")
    found = sample(trained, prompt, sampling, length=length, seed=seed)
    return printable([*prompt.tolist(), *found], tokenizer)


def predict_more(options: Namespace, trained: Trained) -> Predictions:
    """Continues the text of --continue; see `specs.PredictSpec`."""
    flags, beginning = vars(options), vars(options)["continue"]
    names = ("temperature", "top_k", "top_p", "length", "seed")
    how = {name: flags[name] for name in names if flags[name] is not None}
    text = continue_text(trained, beginning, **how)
    return Predictions("texts", [({"beginning": beginning, "text": text}, [text])])
