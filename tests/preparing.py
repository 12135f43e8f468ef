"""Tiny image sets in every layout that `prepare_data.py` reads, and the command itself."""

import io
import itertools
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python import array_record_module
from image_sources import png

from widenet_jax.cli import prepare_data

ROOT = Path(__file__).parents[1]
NAMES = [f"class{i}" for i in range(10)]


def run(*arguments: object) -> int:
    """Runs the command in this process; returns its exit code."""
    return prepare_data.main([str(argument) for argument in arguments])


def refused(capsys, *arguments: object) -> str:
    """Runs a command that must exit with 2; returns its one line on standard error."""
    assert run(*arguments) == 2
    return error_line(capsys.readouterr().err)


def error_line(stderr: str) -> str:
    # A progress bar redraws its line with carriage returns; the message follows the last one.
    lines = [line for line in stderr.splitlines() if "error: " in line]
    assert len(lines) == 1 and "Traceback" not in stderr, stderr
    assert stderr.rstrip().endswith(lines[0]), "the message is one line, and the last"
    return lines[0]


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file, and the folders that it lies in; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def photo(value: int) -> bytes:
    """Encodes a JPEG of a single grey level, which compression does not change."""
    return cv2.imencode(".jpg", np.full((16, 16, 3), value, np.uint8))[1].tobytes()


def make_tar(path: Path, members: Mapping[str, bytes], mode: str = "w", **options) -> Path:
    with tarfile.open(path, mode, **options) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_npz(path: Path, values: Sequence[int] = (0, 1), **changes: np.ndarray) -> Path:
    """Writes a pack of photos; even values have label 0 and odd ones 1."""
    files = [photo(value) for value in values]
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offsets": np.cumsum([0] + [len(file) for file in files]),
        "labels": np.array([value % 2 for value in values]),
        "class_names": np.array(["even", "odd"]),
        **changes,
    }
    np.savez_compressed(path, **arrays)
    return path


def make_parquet(
    path: Path,
    labels: object,
    names: Sequence[str] | None = None,
    images: object = None,
    columns: Sequence[str] = ("image",),
) -> Path:
    """Writes a column `label`, and `columns` of the images, by default photo(10 * label)."""
    if images is None:
        images = [{"bytes": photo(10 * label), "path": None} for label in labels]
    table = pa.table({**dict.fromkeys(columns, images), "label": labels})
    if names:
        described = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    pq.write_table(table, path)
    return path


def cifar_record(label: int, image: np.ndarray | None = None) -> bytes:
    image = np.zeros((32, 32, 3), np.uint8) if image is None else image
    return bytes([label]) + image.transpose(2, 0, 1).tobytes()


def make_cifar(path: Path, files: Mapping[str, bytes] | None = None) -> Path:
    """Writes CIFAR-10's binary archive of one training and one test image, plus `files`."""
    content = {
        "data_batch_1.bin": cifar_record(3),
        "test_batch.bin": cifar_record(4),
        "batches.meta.txt": "\n".join(NAMES).encode() + b"\n\n",
        **(files or {}),
    }
    members = {f"cifar-10-batches-bin/{name}": data for name, data in content.items()}
    return make_tar(path, members, "w:gz")


def python2(value: object) -> bytes:
    """Encodes a value as Python 2 pickled CIFAR's archives, without the end; see `pickled`."""
    if isinstance(value, np.ndarray):
        state = [1, value.shape, value.dtype, False, value.tobytes()]
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        return made + python2((0,)) + python2(b"b") + b"tR" + python2(tuple(state)) + b"b"
    if isinstance(value, np.dtype):
        arguments, state = (value.str[1:].encode(), 0, 1), (3, b"|", None, None, None, -1, -1, 0)
        return b"cnumpy\ndtype\n" + python2(arguments) + b"R" + python2(state) + b"b"
    if isinstance(value, bytes | int) and not isinstance(value, bool):
        code, size = (b"T", len(value)) if isinstance(value, bytes) else (b"J", value)
        return code + size.to_bytes(4, "little", signed=True) + (value if code == b"T" else b"")
    if value is None or value is False:
        return b"N" if value is None else b"\x89"
    items = itertools.chain(*value.items()) if isinstance(value, dict) else value
    return b"(" + b"".join(map(python2, items)) + {dict: b"d", list: b"l"}.get(type(value), b"t")


def pickled(value: object) -> bytes:
    return b"\x80\x02" + python2(value) + b"."


def cifar_python(
    images: np.ndarray, labels: Sequence[int], names: Sequence[str], key: bytes = b"labels"
) -> dict[str, dict[bytes, object]]:
    """Returns what the files of CIFAR for Python hold; half of the images are the test split's."""
    half, rows = -(-len(images) // 2), images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    files = ("meta", "train", "test")
    if key == b"labels":
        files = ("batches.meta", "data_batch_1", "test_batch")
    named = {key[:-1] + b"_names": [name.encode() for name in names]}
    parts = ({b"data": rows[part], key: labels[part]} for part in (slice(half), slice(half, None)))
    return dict(zip(files, (named, *parts), strict=True))


def write_shard(path: Path, contents: Sequence[bytes]) -> None:
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for content in contents:
        writer.write(content)
    writer.close()


def tfds_record(**features: bytes | int) -> bytes:
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        values = feature.bytes_list if isinstance(value, bytes) else feature.int64_list
        values.value.append(value)
    return example.SerializeToString()


def make_tfds(
    folder: Path, splits: Mapping[str, Sequence[Sequence[int]]], names: Sequence[str]
) -> Path:
    """Writes a set as TFDS prepares it (array_record), without TensorFlow: data_dir/tiny/1.0.0.

    Args:
      folder: becomes the data_dir.
      splits: the labels of each shard; image i of a split is png(i).
      names: of the labels.
    """
    import tensorflow_datasets as tfds

    image = tfds.features.Image(shape=(None, None, 3))
    features = {"image": image, "label": tfds.features.ClassLabel(names=list(names))}
    made = {}
    for split, shards in splits.items():
        images = map(png, itertools.count())
        made[split] = [
            [tfds_record(image=next(images), label=label) for label in labels] for labels in shards
        ]
    return write_tfds(folder, made, features)


def write_tfds(
    folder: Path, splits: Mapping[str, Sequence[Sequence[bytes]]], features: Mapping[str, object]
) -> Path:
    """Writes a set of features from the records of each shard; see `make_tfds`."""
    import tensorflow_datasets as tfds

    version = folder / "tiny" / "1.0.0"
    version.mkdir(parents=True)
    tfds.features.FeaturesDict(dict(features)).save_config(str(version))
    described = {"name": "tiny", "version": "1.0.0", "fileFormat": "array_record", "splits": []}
    for split, shards in splits.items():
        for k, records in enumerate(shards):
            path = version / f"tiny-{split}.array_record-{k:05d}-of-{len(shards):05d}"
            write_shard(path, records)
        described["splits"].append({
            "name": split, "numBytes": "1", "shardLengths": [str(len(one)) for one in shards],
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        })  # fmt: skip
    (version / "dataset_info.json").write_text(json.dumps(described))
    return folder
