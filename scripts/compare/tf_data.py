"""tf.data as the peer of `benchmark.py input --peer=scripts/compare/tf_data.py`.

Needs TensorFlow, and a folder of JPEG files, PATH/SPLIT/CLASS/x.jpg. Follows TensorFlow practice:
JPEG decoding fused with the crop, all parallelism left to AUTOTUNE. RandAugment has the operations
and strengths of `vision.data.randaugment`, at 224 pixels.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from widenet_jax.vision.data import randaugment
from widenet_jax.vision.data.randaugment import FILL, LEVEL_SCALE
from widenet_jax.vision.data.transforms import ASPECT_RANGE, CROP_ATTEMPTS

Operation = Callable[[tf.Tensor, float], tf.Tensor]


def batches(config: Any, source: Any, *, batch_size: int, num_workers: int) -> Iterator[Any]:
    """Yields shuffled uint8 batches [batch_size, image_size, image_size, 3] without end."""
    del source, num_workers
    files = [str(file) for file in Path(config.data.path, config.data.train_split).glob("*/*")]
    image_size, augment = config.data.image_size, config.augment

    def example(path: tf.Tensor) -> tf.Tensor:
        image = decode_and_crop(tf.io.read_file(path), image_size)
        image = tf.image.random_flip_left_right(image)
        for _ in range(augment.randaugment_layers):
            image = random_operation(image, augment.randaugment_magnitude)
        return tf.ensure_shape(image, (image_size, image_size, 3))

    dataset = tf.data.Dataset.from_tensor_slices(files)
    dataset = dataset.shuffle(len(files)).repeat()
    dataset = dataset.map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    dataset = dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return iter(dataset)


def decode_and_crop(data: tf.Tensor, image_size: int) -> tf.Tensor:
    """Decodes and resizes an inception crop; decodes only the part of the JPEG that it needs."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(data),
        tf.zeros((1, 0, 4)),
        min_object_covered=0.0,
        aspect_ratio_range=ASPECT_RANGE,
        area_range=(0.05, 1.0),
        max_attempts=CROP_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)  # top, left, height, width
    image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
    resized = tf.image.resize(image, (image_size, image_size), method="bilinear")
    return tf.cast(tf.round(resized), tf.uint8)


def random_operation(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    """Applies one operation, drawn uniformly from OPERATIONS and the identity."""
    branches = [lambda op=op: op(image, magnitude) for op in OPERATIONS.values()]
    index = tf.random.uniform((), 0, len(branches) + 1, tf.int32)
    return tf.switch_case(index, [*branches, lambda: image])


def as_uint8(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(image, 0.0, 255.0), tf.uint8)


def auto_contrast(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    pixels = tf.cast(image, tf.float32)
    low = tf.reduce_min(pixels, axis=(0, 1))
    high = tf.reduce_max(pixels, axis=(0, 1))
    scale = tf.math.divide_no_nan(255.0, high - low)
    return tf.where(high > low, as_uint8(pixels * scale - low * scale), image)


def equalize(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    def channel(values: tf.Tensor) -> tf.Tensor:
        counts = tf.math.bincount(tf.reshape(tf.cast(values, tf.int32), [-1]), minlength=256)
        last = tf.boolean_mask(counts, counts > 0)[-1]
        step = (tf.reduce_sum(counts) - last) // 255
        below = tf.cumsum(counts, exclusive=True)
        table = tf.clip_by_value((below + step // 2) // tf.maximum(step, 1), 0, 255)
        table = tf.where(step > 0, table, tf.range(256))
        return tf.cast(tf.gather(table, tf.cast(values, tf.int32)), tf.uint8)

    return tf.stack([channel(image[..., c]) for c in range(3)], axis=-1)


def invert(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    return 255 - image


def posterize(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    shift = 8 - min(int(magnitude / LEVEL_SCALE * 4), 8)
    return tf.bitwise.bitwise_and(image, tf.constant(255 >> shift << shift, tf.uint8))


def solarize(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    threshold = int(magnitude / LEVEL_SCALE * 256)
    return tf.where(tf.cast(image, tf.int32) < threshold, image, 255 - image)


def solarize_add(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    added = tf.cast(image, tf.int32) + int(magnitude / LEVEL_SCALE * 110)
    return tf.where(image < 128, tf.cast(tf.minimum(added, 255), tf.uint8), image)


def blend(degenerate: tf.Tensor, image: tf.Tensor, magnitude: float) -> tf.Tensor:
    factor = magnitude / LEVEL_SCALE * 1.8 + 0.1
    degenerate, image = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    return as_uint8(degenerate + factor * (image - degenerate))


def color(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    return blend(tf.image.rgb_to_grayscale(image), image, magnitude)


def contrast(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    grey = tf.cast(tf.image.rgb_to_grayscale(image), tf.float32)
    return blend(tf.floor(tf.reduce_mean(grey) + 0.5), image, magnitude)


def brightness(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    return blend(tf.zeros_like(image), image, magnitude)


def sharpness(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    kernel = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32) / 13
    kernel = tf.tile(kernel[..., None, None], [1, 1, 3, 1])
    pixels = tf.cast(image, tf.float32)[None]
    smooth = tf.nn.depthwise_conv2d(pixels, kernel, [1, 1, 1, 1], "VALID")[0]
    smooth = tf.round(tf.clip_by_value(smooth, 0.0, 255.0))
    inside = tf.pad(tf.ones_like(smooth, tf.bool), [[1, 1], [1, 1], [0, 0]])
    smooth = tf.pad(smooth, [[1, 1], [1, 1], [0, 0]])
    return blend(tf.where(inside, smooth, pixels[0]), image, magnitude)


def signed(value: float) -> tf.Tensor:
    return tf.where(tf.random.uniform(()) < 0.5, value, -value)


def warp(image: tf.Tensor, matrix: Sequence[Any]) -> tf.Tensor:
    """Computes output(x, y) = image(matrix @ (x, y, 1)), nearest; `matrix` is 2 x 3, row-major."""
    transform = tf.stack([tf.cast(v, tf.float32) for v in (*matrix, 0.0, 0.0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=transform[None],
        output_shape=tf.shape(image)[:2],
        fill_value=float(FILL),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )[0]


def rotate(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    angle = signed(math.radians(magnitude / LEVEL_SCALE * 30.0))
    cos, sin = tf.cos(angle), tf.sin(angle)
    height, width = image.shape[0], image.shape[1]
    x, y = (width - 1) / 2, (height - 1) / 2
    return warp(image, (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y))


def shear_x(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    level = signed(magnitude / LEVEL_SCALE * 0.3)
    # About the corner of the first pixel.
    return warp(image, (1.0, level, level / 2, 0.0, 1.0, 0.0))


def shear_y(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    level = signed(magnitude / LEVEL_SCALE * 0.3)
    return warp(image, (1.0, 0.0, 0.0, level, 1.0, level / 2))


def translate_x(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    pixels = signed(magnitude / LEVEL_SCALE * randaugment.TRANSLATE_PIXELS)
    return warp(image, (1.0, 0.0, pixels, 0.0, 1.0, 0.0))


def translate_y(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    pixels = signed(magnitude / LEVEL_SCALE * randaugment.TRANSLATE_PIXELS)
    return warp(image, (1.0, 0.0, 0.0, 0.0, 1.0, pixels))


def cutout(image: tf.Tensor, magnitude: float) -> tf.Tensor:
    reach = int(magnitude / LEVEL_SCALE * randaugment.CUTOUT_PIXELS)
    height, width = image.shape[0], image.shape[1]
    y = tf.random.uniform((), 0, height, tf.int32)
    x = tf.random.uniform((), 0, width, tf.int32)
    rows = (tf.range(height) >= y - reach) & (tf.range(height) < y + reach)
    columns = (tf.range(width) >= x - reach) & (tf.range(width) < x + reach)
    hole = rows[:, None] & columns[None, :]
    return tf.where(hole[..., None], tf.constant(FILL, tf.uint8), image)


OPERATIONS: dict[str, Operation] = randaugment.by_name(
    auto_contrast,
    equalize,
    invert,
    rotate,
    posterize,
    solarize,
    color,
    contrast,
    brightness,
    sharpness,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    cutout,
    solarize_add,
)
