"""Every field of a config, with its meaning and its usual value.

A config file takes these and changes what it needs:

  from configs import defaults

  def get_config(variant="widenet_b"):
      family, size, options = parse_variant(variant)
      config = defaults.get_config(vision_model(family, size, options))
      config.update(batch_size=512, optimizer={"name": "sgd", "momentum": 0.9})
      return config

A name that is not here is refused, so that a misspelt one cannot go unnoticed. To add a field for
a new task or data set: `with config.unlocked(): ...`. Numbers are checked: whole ones are at least
1 and others at least 0, unless `LEAST` in widenet_jax/config/files.py says otherwise.

Durations are text, a number and a unit: "500 steps", "1e6 examples", "2.5 epochs". A warm-up may
also be a share of the run, "5%", which follows another config.duration.
"""

from ml_collections import ConfigDict


def get_config(model: dict, task: str = "classification") -> ConfigDict:
    """Returns the default config around the `config.model` section `model`.

    Args:
      model: a section that models/sizes.py or models/text_sizes.py makes.
      task: a key of `SECTIONS`.
    """
    config = ConfigDict()
    config.seed = 0  # of initialisation, dropout, routing noise and the order of the data
    config.init_from = ""  # a run, an export, or public weights; "": from scratch
    config.batch_size = 128  # examples a step, over all devices
    config.duration = "10 epochs"
    config.log_every_steps = 10
    config.on_nonfinite = "stop"  # or "skip": leave out updates that are not finite
    config.max_skipped_updates = 10  # then the run stops all the same

    config.model = model  # models/sizes.py and models/text_sizes.py have the fields

    for section, fields in SECTIONS[task]().items():
        config[section] = fields
    config.data.update(
        num_workers=0,  # reading processes on each host; 0: threads
        prefetch=4,  # batches
        on_bad_example="error",  # or "skip": replace examples that cannot be read
        max_bad_fraction=0.001,  # of a split, at least 10 or 5% of it; more of them fail the run
    )
    config.optimizer = {
        "name": "adamw",  # adamw, lamb, sgd
        "learning_rate": 1e-3,  # after the warm-up
        "end_learning_rate": 0.0,
        "schedule": "cosine",  # cosine, linear, constant
        "warmup": "0 steps",
        "b1": 0.9,  # adamw, lamb
        "b2": 0.999,  # adamw, lamb
        "eps": 1e-6,  # adamw, lamb
        "momentum": 0.9,  # sgd
        "weight_decay": 0.0,  # inside LAMB's trust ratio; decoupled in AdamW; an L2 loss in SGD
        "grad_clip_norm": 1.0,  # global norm; 0: no clipping
        "exclude_norm_and_bias": True,  # from decay, and from LAMB's trust ratio
        "decay_exclude": "",  # regular expression of whole parameter paths that do not decay
        "accumulation_steps": 1,  # micro-batches of a step
        "layer_decay": 1.0,  # of the learning rate, from each layer to the one below; 1: none
        "ema_decay": 0.0,  # of an average of the parameters to evaluate and export; 0: none
        "freeze": "none",  # or "backbone": only the head learns (a linear probe)
    }
    config.evaluation = {"batch_size": 512, "every": "1 epoch"}
    config.checkpoint = {"every": "1 epoch", "keep": 2}  # the newest `keep`; the best besides
    # Devices along each axis of the mesh, -1: all but the other's. `data` takes what is left.
    config.sharding = {"fsdp": 1, "expert": 1}
    config.watchdog = {  # when a run makes no progress for so many seconds; 0: never
        "dump_after_seconds": 900,  # print the stacks of all threads
        "exit_after_seconds": 0,  # end the process
    }
    config.tracking = {"tensorboard": True, "wandb_project": ""}  # "": no Weights & Biases
    return config.lock()


def classification() -> dict:
    """Returns the sections of image classification."""
    return {
        "task": {
            "name": "classification",
            "label_smoothing": 0.0,  # in [0, 1)
            "class_weights": "none",  # or "balanced": each class has the same weight in the loss
        },
        "data": {
            "source": "array_record",  # array_record, image_folder, tfds, digits
            "name": "",  # of a TFDS set
            "path": "",  # a directory, local or gs://; "": the directory of TFDS
            "train_split": "train",
            "eval_split": "test",  # names and TFDS's slices, such as "train[90%:]"
            "eval_fraction": 0.0,  # of an image folder without eval_split, held out by file name
            "image_size": 224,  # pixels a side, after cropping
        },
        "augment": {
            "exif_orientation": True,  # turn photos as their EXIF says; False: the stored pixels
            "crop": "inception",  # a random part of the image; "pad": shift by up to pad_pixels
            "crop_area_min": 0.05,  # of the image, for "inception"
            "pad_pixels": 0,  # for "pad"
            "flip": True,  # left to right, every second image
            "randaugment_layers": 0,  # operations on each image; 0: no RandAugment
            "randaugment_magnitude": 15.0,  # 0 to 30
            "randaugment_before_crop": False,  # as in the authors' code
            "color_jitter": 0.0,  # largest change of brightness, contrast, saturation; 0: none
            "random_erasing": 0.0,  # probability that a rectangle becomes noise; 0: none
            "eval_crop": "squash",  # the whole image; "central": a square from the middle
            "eval_crop_fraction": 1.0,  # of the short side, for "central"
            "mixup_alpha": 0.0,  # lambda ~ Beta(alpha, alpha) for each example; 0: no mixup
            "cutmix_alpha": 0.0,  # the same for CutMix; with mixup each example has one of the two
            "mixup_group_size": 16,  # partners come from so many neighbours in the batch
        },
    }


def masked_lm() -> dict:
    """Returns the sections of masked language modelling with sentence order."""
    return {
        "task": {
            "name": "masked_lm",
            "mask_fraction": 0.15,  # of a sequence's tokens, special ones included
            "max_predictions": 0,  # P; 0: mask_fraction of max_length
            "max_ngram": 3,  # words masked together; 1: single words
        },
        "data": {
            "source": "text",
            "path": "",  # a set that scripts/prepare_data.py text wrote, local or gs://
            "train_split": "train",
            "eval_split": "valid",
            "max_length": 512,  # T, tokens of a sequence
        },
    }


def text_classification() -> dict:
    """Returns the sections of classification of texts and pairs of texts."""
    return {
        "task": {"name": "text_classification"},
        "data": {
            "source": "table",
            "path": "",  # a directory of splits, train.tsv, dev.tsv, ..., or one file
            "tokenizer": "",  # a tokenizer.json, vocab.txt or .model; "": that of init_from
            "train_split": "train",
            "eval_split": "dev",
            "max_length": 512,  # T, tokens of a sequence
            "text_column": "",  # "": as in GLUE, Hugging Face's and TFDS's sets
            "pair_column": "",
            "label_column": "",
            "label_names": "",  # of labels 0, 1, ...: "negative,positive"; "": as in the file
        },
    }


def span() -> dict:
    """Returns the sections of question answering by a span of the context."""
    return {
        "task": {
            "name": "span",
            "head": "beam",  # ALBERT's; "span": BERT's
            "unanswerable": False,  # True: some questions have no answer (SQuAD2.0)
            "max_answer_length": 30,  # tokens
            "null_threshold": 0.0,  # no answer where the null score is above
        },
        "data": {
            "source": "squad",
            "path": "",  # a directory of splits in the official JSON or as parquet
            "tokenizer": "",  # a tokenizer.json, vocab.txt or .model; "": that of init_from
            "train_split": "train",
            "eval_split": "dev",
            "max_length": 384,  # T, tokens of a window
            "max_question_length": 64,  # tokens
            "stride": 128,  # tokens between the starts of two windows
        },
    }


def language_modeling() -> dict:
    """Returns the sections of language modelling."""
    return {
        "task": {
            "name": "language_modeling",
            "memory_length": 0,  # M, tokens that a segment sees beside its own; 0: max_length
            "eval_memory_length": 0,  # M in evaluation; 0: 4 times max_length
        },
        "data": {
            "source": "token_stream",  # or tiny_pieces: an embedded novel in word pieces
            "path": "",  # of prepare_data.py stream, or a file, as bytes; "": an embedded novel
            "train_split": "train",
            "eval_split": "valid",
            "max_length": 512,  # T, tokens of a segment
        },
    }


# config.task.name -> the sections that depend on it
SECTIONS = {
    "classification": classification,
    "masked_lm": masked_lm,
    "text_classification": text_classification,
    "span": span,
    "language_modeling": language_modeling,
}


def mixup_group_size(model: ConfigDict) -> int:
    """Returns the routing group's size, so that mixup's partners stay in one group.

    Models without experts, or with groups of one image, mix within 16 neighbours.
    """
    images = model.moe.examples_per_group if model.moe else 1
    return images if images > 1 else 16
