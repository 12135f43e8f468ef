"""Instances are pure functions of (seed, epoch, record), and hold what the chunks hold."""

import numpy as np
import pytest
from batch_streams import assert_no_worker_left, assert_same, eval_stream, joined, train_stream

from configs import defaults
from widenet_jax.config.fields import override
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.instances import InstanceTransform, instance_spec
from widenet_jax.text.data.masking import MaskingRules

CLS, SEP, MASK, PAD, V, T, P = 2, 3, 4, 0, 300, 32, 5


class Chunks:
    """Forty chunks of one to four sentences; a packed record holds up to three short ones."""

    def __init__(self, packed: bool = False):
        self.packed, self.info = packed, {}

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict:
        rng = np.random.default_rng(index)
        if self.packed:
            return {"chunks": [self.sentences(rng, 2, 4) for _ in range(1 + index % 3)]}
        return {"sentences": self.sentences(rng, rng.integers(1, 5), 12)}

    def sentences(self, rng: np.random.Generator, count: int, most: int) -> list[np.ndarray]:
        return [
            rng.integers(5, V, rng.integers(1, most + 1)).astype(np.uint16) for _ in range(count)
        ]

    def describe(self, index: int) -> str:
        return f"chunk {index}"


def transform() -> InstanceTransform:
    rules = MaskingRules(np.arange(V) % 3 > 0, np.arange(V) < 5, MASK, 0.15, P, 3)
    return InstanceTransform(rules, T, cls_id=CLS, sep_id=SEP, pad_id=PAD)


def stream(packed: bool = False, **changes) -> list[dict[str, np.ndarray]]:
    options = {"seed": 7, "num_steps": 8, **changes}
    return train_stream(Chunks(packed), transform(), 8, **options)


@pytest.mark.slow
def test_workers_change_no_mask():
    assert_same(stream(True, num_workers=2), stream(True))
    assert_no_worker_left()


@pytest.mark.parametrize("packed", [False, True])
def test_hosts_and_resume_change_no_mask(packed: bool):
    """Eight steps of 8 are one epoch and more than half of the next."""
    unbroken = stream(packed)
    assert_same(stream(packed, start_step=5), unbroken[5:])
    hosts = [stream(packed, positions=part) for part in (np.arange(3), np.arange(3, 8))]
    assert_same(joined(hosts), unbroken)


def test_epochs_and_seeds_differ_and_evaluation_does_not():
    def masks(batches: list[dict]) -> dict:
        records = np.concatenate([batch["record"] for batch in batches])
        rows = np.concatenate([batch["mlm_positions"] for batch in batches]).tolist()
        return dict(zip(records.tolist(), rows, strict=True))

    first, second = masks(stream(num_steps=5)), masks(stream(start_step=5, num_steps=10))
    other_seed = masks(stream(num_steps=5, seed=8))
    for changed in (second, other_seed):
        assert sum(first[record] != changed[record] for record in first) > 30

    def evaluated(batch_size: int) -> dict:
        return masks(eval_stream(Chunks(), transform(), batch_size))

    assert evaluated(8) == evaluated(20)


def test_an_instance_holds_its_chunk():
    for record in range(40):
        example = Chunks()[record]
        chunk = np.concatenate(example["sentences"]).tolist()
        row = transform()(example, np.random.default_rng(record))
        n, k = int(row["length"]), int(row["mlm_count"])
        assert k == min(P, max(1, round(0.15 * n)))
        row["tokens"][row["mlm_positions"][:k]] = row["mlm_labels"][:k]
        tokens = row["tokens"].tolist()
        second = tokens.index(SEP) + 1
        a, b = tokens[1 : second - 1], tokens[second : n - 1]
        assert tokens[0] == CLS and tokens[n - 1] == SEP and set(tokens[n:]) <= {PAD}
        assert row["token_types"].tolist() == [0] * second + [1] * (n - second) + [0] * (T - n)
        if len(chunk) <= T - 3:
            assert (b + a if row["order"] else a + b) == chunk
        else:
            assert n == T
            assert all("".join(map(chr, part)) in "".join(map(chr, chunk)) for part in (a, b))


def test_half_of_the_instances_are_swapped():
    rng, example = np.random.default_rng(0), Chunks()[3]
    swapped = np.mean([transform()(example, rng)["order"] for _ in range(1000)])
    assert abs(swapped - 0.5) < 3 * np.sqrt(0.25 / 1000)


@pytest.mark.parametrize("record", range(3))
def test_a_packed_row_holds_the_instances_of_its_chunks(record: int):
    """The same generator draws the same instances one by one."""
    make, example = transform(), Chunks(packed=True)[record]
    row, rng, first, taken = make(example, np.random.default_rng(0)), np.random.default_rng(0), 0, 0
    for number, chunk in enumerate(example["chunks"]):
        one = make({"sentences": chunk}, rng)
        n, k = int(one["length"]), int(one["mlm_count"])
        place, predicted = slice(first, first + n), slice(taken, taken + k)
        assert (row["positions"][place] == np.arange(n)).all()
        assert (row["segment_ids"][place] == number + 1).all()
        for name, ours in (("tokens", place), ("token_types", place), ("mlm_labels", predicted)):
            assert (row[name][ours] == one[name][: ours.stop - ours.start]).all()
        assert (row["mlm_positions"][predicted] - first == one["mlm_positions"][:k]).all()
        assert row["order"][number] == one["order"]
        first, taken = first + n, taken + k
    assert not row["segment_ids"][first:].any() and not row["tokens"][first:].any()
    assert row["num_instances"] == len(example["chunks"]) and row["mlm_count"] == taken


def test_the_plan_knows_the_arrays():
    config = defaults.get_config({}, "masked_lm")
    config.data.max_length, config.task.max_predictions = T, P
    row = transform()(Chunks()[0], np.random.default_rng(0))
    found = {name: (np.shape(x), str(np.asarray(x).dtype)) for name, x in row.items()}
    assert {name: tuple(spec) for name, spec in instance_spec(config).items()} == found


@pytest.mark.parametrize(
    "line",
    ["task.mask_fraction=2.0 must be between 0 and 1", "data.max_length=70000 must be between"],
)
def test_limits(line: str):
    config = defaults.get_config({}, "masked_lm")
    with pytest.raises(BadInputError, match=f"^--config.{line}"):
        override(config, [f"--config.{line.split()[0]}"])
