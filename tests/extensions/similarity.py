"""How similar two sentences are, from 0 to 5: a text task with its own head, and its config."""

import jax.numpy as jnp
import numpy as np

from widenet_jax import specs
from widenet_jax.data.contract import ArraySpec
from widenet_jax.errors import BadInputError
from widenet_jax.specs import CardSpec, Flag, HeadSpec, Part, PredictSpec, SourceSpec, TaskSpec
from widenet_jax.task import Evaluation, PrimaryMetric, add_layer_losses
from widenet_jax.text.classification import TextClassification
from widenet_jax.text.data import sequences
from widenet_jax.text.data.files import read_columns, read_split
from widenet_jax.text.heads import dense, pooled
from widenet_jax.trained import Predictions, over_rows


class Pairs:
    """Pairs of sentences with a score, tokenised when opened."""

    def __init__(self, data, split, info):
        def read(file):
            columns = read_columns(file)
            if not columns.keys() >= {"first", "second", "score"}:
                raise BadInputError(f"{file}: needs the columns first, second and score")
            return zip(columns["first"], columns["second"], columns["score"], strict=True)

        self.tokenizer = sequences.tokenizer_for(data, info)
        self.rows = read_split(data["path"], split, read)
        self.length, self.split = data["max_length"], split
        self.info = sequences.tokenizer_info(self.tokenizer)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        *pair, score = self.rows[index]
        joined = sequences.join(self.tokenizer, *map(self.tokenizer.encode, pair), self.length)
        return {**sequences.sequence_row(joined, length=self.length), "score": np.float32(score)}

    def describe(self, index: int) -> str:
        return f"{self.split} row {index + 1}"


class Similarity(TextClassification):
    """Mean squared error of the score; Pearson's correlation as the primary metric."""

    primary_metric, unit = PrimaryMetric("pearson"), "pairs"

    @classmethod
    def build(cls, config, data_info):
        return cls(data_info.info["vocab_size"], 1, data_info.example)

    @property
    def model_fields(self):
        return {"vocab_size": self.vocab_size, "head": "similarity"}

    def loss(self, apply, batch, rngs):
        score, aux = apply(self.inputs(batch), rngs)
        error = jnp.mean((score - batch["score"]) ** 2)
        return add_layer_losses(error, {"squared_error": error}, aux)

    def evaluate(self, apply, batch):
        score, aux = apply(self.inputs(batch), None)
        rows = {"score": score, "label": batch["score"]}
        return Evaluation({"pairs": batch["mask"].sum()}, aux.get("sums", {}), rows)

    def summarize(self, sums, rows, source):
        pearson = np.corrcoef(rows["score"], rows["label"])[0, 1]
        return {"pearson": float(pearson), "pairs": int(sums["pairs"])}


def head(model, x, table, inputs, *, train):  # [B, T, D] -> [B]
    return dense(model.outer_init, 1, "similarity")(pooled(model, x, inputs))[..., 0]


def predict(options, trained):
    tokenizer, length = trained.tokenizer, trained.config.data.max_length
    texts = map(tokenizer.encode, (options.first, options.second))
    row = sequences.sequence_row(sequences.join(tokenizer, *texts, length), length=length)
    find = over_rows(trained, lambda task, apply, batch: apply(task.inputs(batch), None)[0])
    score = float(find([row])[0])
    return Predictions("similarities", [({"score": score}, [f"similarity {score:.2f} of 5"])])


def arrays(example, rng):
    return {name: array for name, array in example.items() if name != "where"}


def example(config, params):
    return {**sequences.sequence_spec(config.data.max_length), "score": ArraySpec((), "float32")}


data = {
    "source": ("pairs", "sentences with a score"), "path": ("", "of train.tsv and dev.tsv"),
    "tokenizer": ("", "a vocab.txt"), "max_length": (16, "tokens", 5, 512),
    "train_split": ("train", "its file"), "eval_split": ("dev", "its file")}  # fmt: skip
parts = {"pooler": Part("where it fits", head=False), "similarity": Part("never")}
specs.register(TaskSpec(
    name="similarity", task=Similarity, example=example, sections={"task": {}, "data": data},
    sources={"pairs": SourceSpec(Pairs)}, transforms=lambda config, info: (arrays, arrays),
    sizes=("num_examples", "vocab_size"), card=CardSpec("scoring how similar two sentences are"),
    heads={"similarity": HeadSpec(head, lambda model, spec: 2 * (model.embed_dim + 1), parts)},
    predict=PredictSpec("--first=TEXT --second=TEXT", {
        "--first": Flag("a sentence"), "--second": Flag("another")}, predict)))  # fmt: skip


def get_config(directory: str):  # has train.tsv and dev.tsv (first, second, score), vocab.txt
    from configs import defaults  # here: commands that import this file have no such package
    from configs.variants import model_section

    config = defaults.get_config(model_section("widenet_4_tiny"), task="similarity")
    config.data.update(path=directory, tokenizer=f"{directory}/vocab.txt")
    config.model.update(loop={"core": ((1, 2),)}, embed_dim=32, mlp_dim=64)
    config.optimizer.update(learning_rate=1e-2, warmup="4 steps")
    evaluation = {"batch_size": 16, "every": "20 steps"}
    config.update(batch_size=16, duration="60 steps", evaluation=evaluation)
    return config
