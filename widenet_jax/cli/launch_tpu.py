"""Trains on a Cloud TPU: creates it, sets it up, runs on all workers, restarts if preempted.

  python scripts/launch_tpu.py --config=configs/imagenet.py:widenet_b --tpu=v3-256 \\
      --zone=europe-west4-a --workdir=gs://BUCKET/widenet_b --dry_run
  python scripts/launch_tpu.py status|logs|stop|delete NAME --zone=europe-west4-a

--config.FIELD=VALUE sets fields, as in training. Every command is printed before it runs. Exit
codes: those of the run; 2 your input; 3 the launch or the run failed; 143 the run was stopped and
saved ("the run ended with exit code 143"), or the launcher received SIGTERM and the run goes on.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from widenet_jax.cli.plan import DATA_SIZES, add_data_flags
from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import Argv, Options, Parser, seconds
from widenet_jax.errors import STOPPED, BadInputError
from widenet_jax.ops.launch import job as jobs
from widenet_jax.ops.launch.cloud_tpu import CloudTpu
from widenet_jax.ops.launch.handover import Gke, SkyPilot
from widenet_jax.ops.launch.job import Job
from widenet_jax.ops.launch.plan_line import check_plan, plan_line, plan_of
from widenet_jax.ops.launch.tools import Tools

VERBS = ("status", "logs", "stop", "delete")
CREATED_BY_GCLOUD = ("tpu-vm", "queued-resource")
BACKENDS = (*CREATED_BY_GCLOUD, "skypilot", "gke")


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    manages = bool(words) and words[0] in VERBS
    parser = Parser(__doc__, takes_fields=not manages)
    add = parser.add_argument
    add("--zone", default="", help="europe-west4-a, ...; --backend=skypilot needs none")
    add("--project", default="", help="gcloud's default project by default")
    add("--backend", default="tpu-vm", choices=BACKENDS)
    add("--cluster", default="", help="of GKE, for --backend=gke")
    add("--dry_run", action="store_true", help="print the commands, run none")
    add("--poll_seconds", type=seconds, default=20.0, help="between checks of the TPU")
    if manages:
        add("verb")
        add("name")
        return parser.run(manage, words)
    add("--config", required=True, metavar="FILE[:VARIANT]")
    add("--workdir", required=True, help="gs://...: all workers write there, and resume from it")
    add("--tpu", required=True, help="v3-256, v5e-16, ...")
    text = "as of training: a longer config.duration may change the learning rate of a run"
    add("--extend", action="store_true", help=text)
    add("--name", help="of the TPU; derived from the config by default")
    add("--spot", action="store_true", help="cheaper, and may be preempted")
    add("--runtime_version", default="", help="of the TPU VM image; by default the generation's")
    text = "further flags of `gcloud ... create`, as in '--network=NAME --labels=team=vision'"
    add("--gcloud_flags", default="", metavar="FLAGS", help=text)
    add("--skip_plan", action="store_true", help="do not compile for the TPU first")
    add_data_flags(add)
    add("--delete_when_done", action="store_true", help="delete the TPU when the run has succeeded")
    return parser.run(launch, words)


def launch(options: Options) -> int:
    """Runs a config on a TPU and returns the exit code."""
    job = job_of(options)
    backend = backend_of(options, job)
    plan = partial(show_plan, options, job)
    return run_on(backend, plan, options) if isinstance(backend, CloudTpu) else backend.launch(plan)


def run_on(backend: CloudTpu, plan: Callable[[], None], options: Options) -> int:
    """Runs the job of a Cloud TPU; whatever ends it, says that the TPU may still exist."""
    try:
        with sigterm_as_exit():
            code = backend.launch(plan)
            if options.delete_when_done or not options.dry_run:
                finish(backend, code, delete=options.delete_when_done)
    except BaseException:  # Ctrl-C and SIGTERM, too
        if not options.dry_run:
            backend.tell_cost()
        raise
    return code


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Lets SIGTERM, which a stopped sweep sends, raise SystemExit instead of ending the process."""

    def end(*_: object) -> None:
        raise SystemExit(STOPPED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show_plan(options: Options, job: Job) -> None:
    """Prints the plan of the run, unless --skip_plan omits it.

    Raises:
      BadInputError: the plan cannot be made, or the run does not fit.
    """
    if options.skip_plan:
        return
    plan = plan_of(options.config, job.tpu.name, [*data_flags(options), *options.fields])
    check_plan(plan, job.tpu.name)
    print(plan_line(plan), file=sys.stdout if options.dry_run else sys.stderr, flush=True)


def data_flags(options: Options) -> list[str]:
    """Returns the given flags that stand for a data set, which only the plan reads."""
    sizes = {name: getattr(options, name) for name in DATA_SIZES}
    return [f"--{name}={size}" for name, size in sizes.items() if size]


def finish(backend: CloudTpu, code: int, *, delete: bool) -> None:
    """Deletes the TPU after the run, or says that it still exists."""
    if delete and code == 0:
        backend.delete()
    else:
        print(
            f"the run ended with exit code {code}; {backend.job.name} still costs money: "
            f"{backend.managing('delete')}",
            file=sys.stderr,
        )


def job_of(options: Options) -> Job:
    """Returns the job, after every check that can be made before anything is created.

    Raises:
      BadInputError: a config, field, name or place that cannot be.
    """
    if options.skip_plan and (unread := data_flags(options)):
        raise BadInputError(
            f"{unread[0]} is for the plan, which --skip_plan omits; leave one of the two out"
        )
    tpu = jobs.parse_tpu(options.tpu)
    config = jobs.check_config(options.config)
    jobs.check_places(override(load_config(options.config), options.fields))
    if not options.workdir.startswith("gs://"):
        raise BadInputError(
            f"--workdir={options.workdir}: give a gs:// directory, which all workers share and "
            "which outlives the TPU"
        )
    name = jobs.check_name(options.name or jobs.default_name(options.config))
    places = (f"--config={config}", f"--workdir={options.workdir}")
    extend = ["--extend"] if options.extend else []
    arguments = (*places, "--distributed", *extend, *options.fields)
    image = options.runtime_version or jobs.RUNTIME_VERSIONS[tpu.generation]
    flags = jobs.split_gcloud_flags(options.gcloud_flags)
    same = {key: getattr(options, key) for key in ("zone", "project", "spot", "cluster")}
    return Job(name, tpu, arguments=arguments, runtime_version=image, gcloud_flags=flags, **same)


def backend_of(options: Options, job: Job) -> CloudTpu | SkyPilot | Gke:
    """Returns the means that --backend names, for this job.

    Raises:
      BadInputError: the backend lacks a flag, or cannot use one.
    """
    if job.gcloud_flags and options.backend not in CREATED_BY_GCLOUD:
        raise BadInputError(
            f"--gcloud_flags: --backend={options.backend} does not create the TPU with gcloud; "
            f"choose --backend={' or '.join(CREATED_BY_GCLOUD)}"
        )
    if not job.zone and options.backend != "skypilot":
        raise BadInputError(
            f"--backend={options.backend} needs --zone, as in --zone=europe-west4-a; "
            "--backend=skypilot finds one"
        )
    tools = Tools(job.tpu.name, job.zone, dry=options.dry_run)
    if options.backend == "skypilot":
        if job.project:
            raise BadInputError(
                f"--project={job.project}: SkyPilot takes the project of gcloud; leave it out, and "
                f"run: gcloud config set project {job.project}"
            )
        return SkyPilot(job, tools)
    if options.backend == "gke":
        return Gke(job, tools)
    queued = options.backend == "queued-resource"
    return CloudTpu(job, tools, queued=queued, poll_seconds=options.poll_seconds)


def manage(options: Options) -> None:
    """Runs status, logs, stop (the run saves and ends, a Cloud TPU stays) or delete."""
    # These verbs ignore the TPU's kind. GKE would refuse one that it does not offer.
    name, tpu = jobs.check_name(options.name), replace(jobs.parse_tpu("v4-8"), name="this TPU")
    job = Job(name, tpu, options.zone, (), options.project, cluster=options.cluster)
    said = getattr(backend_of(options, job), options.verb)()
    if said:
        print(said)


if __name__ == "__main__":
    raise SystemExit(main())
