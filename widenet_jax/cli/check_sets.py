"""Reading of every record of a prepared set, to name those that a run could not read."""

import itertools
from collections.abc import Iterator
from concurrent import futures
from functools import partial

import tqdm
from etils import epath

from widenet_jax.data import records
from widenet_jax.data.shards import ArrayRecord
from widenet_jax.errors import BadInputError, choose
from widenet_jax.language.data.token_files import file_sha256
from widenet_jax.language.data.token_streams import open_stream, token_file_name
from widenet_jax.text.data.text_records import TextRecords
from widenet_jax.text.prepare.check_texts import Check, Checked, problem_of
from widenet_jax.vision.data.files import decode

AT_ONCE = 4096  # records that wait for a thread


def check_set(directory: str) -> Checked:
    """Reads every record of all splits of a set that `scripts/prepare_data.py` wrote.

    Raises:
      BadInputError: dataset.json is missing, damaged, or of an unknown kind.
    """
    manifest = records.read_manifest(directory, None)
    kind = manifest.get("kind", "images")
    field = f"{directory}/{records.MANIFEST}: kind"
    checks_of, unit = choose(KINDS, kind, field=field)
    count, problems = 0, {}
    with futures.ThreadPoolExecutor() as pool, tqdm.tqdm(desc="check", unit="record") as bar:
        for split in manifest["splits"]:
            told: dict[str, None] = {}  # all records of a damaged shard have the same line
            try:
                checks = checks_of(directory, split)
                while some := list(itertools.islice(checks, AT_ONCE)):
                    found = list(pool.map(problem_of, some))
                    told |= dict.fromkeys(filter(None, found))
                    count += len(found)
                    bar.update(len(found))
            except BadInputError as error:  # the split cannot be opened
                told[str(error)] = None
            problems[f"{directory}, split {split}"] = list(told)
    return Checked(f"{count:,} {unit}", problems)


def image_checks(directory: str, split: str) -> Iterator[Check]:
    source = ArrayRecord(directory, split)

    def check(index: int) -> None:
        decode(source[index]["image"], source.describe(index))

    return (partial(check, index) for index in range(len(source)))


def sequence_checks(directory: str, split: str) -> Iterator[Check]:
    source = TextRecords(directory, split)
    return (partial(source.__getitem__, index) for index in range(len(source)))


def stream_checks(directory: str, split: str) -> Iterator[Check]:
    written = records.read_manifest(directory, "stream")["splits"][split]["sha256"]
    path = str(epath.Path(directory) / token_file_name(split))

    def check() -> None:
        open_stream(directory, split, 1)
        if file_sha256(path) != written:
            raise BadInputError(f"{path}: damaged; copy it again or prepare the set again")

    return iter([check])


# kind -> the checks of a split, and what a record is called
KINDS = {
    "images": (image_checks, "images"),
    "text": (sequence_checks, "sequences"),
    "stream": (stream_checks, "files of tokens"),
}
