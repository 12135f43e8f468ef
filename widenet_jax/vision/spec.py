"""Image classification and the vision transformer, as `specs` describes them."""

from widenet_jax import specs

CLASSIFICATION = specs.TaskSpec(
    name="classification",
    task="widenet_jax.vision.task:Classification",
    model="vision_transformer",
    sections={
        "task": {
            "label_smoothing": (0.0, "share of the target spread over all classes", 0, 0.99),
            "class_weights": ("none", "none; balanced: each class counts equally"),
        },
        "data": {
            "source": ("array_record", "array_record, image_folder, tfds, digits"),
            "name": ("", "name of a TFDS set"),
            "path": ("", 'a directory, gs:// too (not image_folder); "": TFDS has its own'),
            "train_split": ("train", 'a name, or slices and sums as in TFDS: "train[:90%]+val"'),
            "eval_split": ("test", 'as train_split, such as "train[90%:]"'),
            "eval_fraction": (0.0, "share of an image folder without eval_split that is held out"),
            "image_size": (224, "pixels a side, after cropping", 1, 2**14),
        },
        "augment": {
            "exif_orientation": (True, "turn photos as their EXIF says"),
            "crop": ("inception", "inception: a random part; pad: shift by up to pad_pixels"),
            "crop_area_min": (0.05, "least share of the image, for crop=inception", 0, 1),
            "pad_pixels": (0, "largest shift, for crop=pad", 0, 2**14),
            "flip": (True, "left to right, half of the images"),
            "randaugment_layers": (0, "operations on each image; 0: none", 0, 2**6),
            "randaugment_magnitude": (15.0, "of each operation, 0 to 30", 0, 30),
            "randaugment_before_crop": (False, "as in the authors' code"),
            "color_jitter": (0.0, "largest change of brightness, contrast, saturation", 0, 0.9),
            "random_erasing": (0.0, "probability that a rectangle becomes noise", 0, 1),
            "eval_crop": ("squash", "squash: the whole image; central: a square from the middle"),
            "eval_crop_fraction": (1.0, "share of the short side, for eval_crop=central", 0.01, 1),
            "mixup_alpha": (0.0, "lambda ~ Beta(alpha, alpha) for each example; 0: none"),
            "cutmix_alpha": (0.0, "as mixup_alpha; with both, each example gets one"),
            "mixup_group_size": (16, "neighbours in the batch that are mixed with each other"),
        },
    },
    transforms="widenet_jax.vision.data.transforms:task_transforms",
    example="widenet_jax.vision.data.transforms:example_of",
    info=("class_names",),
    sources={
        "digits": specs.SourceSpec(
            "widenet_jax.vision.data.digits:open_digits",
            reads="the digits of scikit-learn",
            instead="image_folder for your images",
        ),
        "image_folder": specs.SourceSpec(
            "widenet_jax.vision.data.folders:open_folder", holds_out=True
        ),
        "array_record": specs.SourceSpec("widenet_jax.vision.data.packed:open_array_record"),
        "tfds": specs.SourceSpec("widenet_jax.vision.data.packed:open_tfds", reads_slices=True),
    },
    sizes=("num_examples", "num_classes"),
    sets={
        "imagenet": (1_281_167, 1000),
        "imagenet2012": (1_281_167, 1000),
        "tiny_imagenet": (100_000, 200),
        "cifar10": (50_000, 10),
        "digits": (1_437, 10),
    },
    last_layer="head",
    predict=specs.PredictSpec(
        form="image files",
        flags={
            "files": specs.Flag("image files, folders, '*.jpg'", "FILE", "words"),
            "--overlay": specs.Flag("draw expert choices over the images", "FILE.png", "picture"),
            "--out": specs.Flag("write the predictions to a .csv or .jsonl file", "FILE"),
        },
        run="widenet_jax.vision.predict:predict_images",
    ),
    methods=dict.fromkeys(("predict", "features"), "widenet_jax.vision.predict:rows_of"),
    card=specs.CardSpec(
        purpose="image classification",
        pipeline="image-classification",
        commands=(
            "python scripts/predict.py --workdir=DIR photo.jpg --top=5",
            "python scripts/evaluate.py --workdir=DIR \\",
            "    --config.data.source=image_folder --config.data.path=PHOTOS "
            "--config.data.eval_split=val",
            "python -m widenet_jax.main --config=CONFIG --workdir=RUN --config.init_from=DIR"
            "   # finetune",
        ),
        inputs="Images are {image_size} x {image_size} pixels, scaled to [-1, 1] as "
        "value / 127.5 - 1.",
        arrays="`image` holds pixels from 0 to 255 (three channels: RGB). The program scales them. "
        "Crop as in\nevaluation:\n\n"
        "- eval_crop: {augment[eval_crop]} (squash resizes the whole image; central first resizes\n"
        "  its shorter side to {data[image_size]} / eval_crop_fraction, then cuts the centre)\n"
        "- eval_crop_fraction: {augment[eval_crop_fraction]}\n"
        "- filter: OpenCV's INTER_AREA first, along sides that shrink; then INTER_LINEAR\n"
        "- exif_orientation: {augment[exif_orientation]} (turn photos as their EXIF says)",
    ),
    splits_of="widenet_jax.vision.data.objects:splits_of",
    preview="widenet_jax.vision.prepare.preview:draw_augmentations",
)

VISION_TRANSFORMER = specs.ModelSpec(
    name="vision_transformer",
    module="widenet_jax.vision.model:VisionTransformer",
    settings="widenet_jax.vision.settings:VisionSettings",
    usual={"num_classes": 1000},
    parts=dict.fromkeys(("head", "pre_logits"), specs.Part(specs.SAME_CLASSES)),
    fit="widenet_jax.vision.weights.huggingface:fit",
    families=("ViT", "Shared ViT", "ViT-MoE", "WideNet"),
    detail="patches of {patch_size} pixels",
    readers=(
        "widenet_jax.vision.weights.google:read_google",
        "widenet_jax.vision.weights.huggingface:read_huggingface",
        "widenet_jax.vision.weights.timm:read_timm",
    ),
    usable="widenet_jax.vision.weights.usable:usable",
)
