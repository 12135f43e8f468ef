"""The command line of scripts/launch_tpu.py."""

import sys
from collections.abc import Sequence
from typing import Any

from widenet_jax.cli.parser import Parser
from widenet_jax.config.files import load_config, override
from widenet_jax.errors import BadInputError
from widenet_jax.tools.launch.cloud_tpu import CloudTpu
from widenet_jax.tools.launch.handover import Gke, SkyPilot
from widenet_jax.tools.launch.job import Job, check_config, check_name, check_places, default_name
from widenet_jax.tools.launch.plan_line import check_fits, plan_line, plan_of
from widenet_jax.tools.launch.tools import Tools
from widenet_jax.tools.launch.tpus import parse_tpu

VERBS = ("status", "logs", "stop", "delete")
BACKENDS = ("tpu-vm", "queued-resource", "skypilot", "gke")
USAGE = """Trains on a Cloud TPU: makes it, sets it up, runs on all workers, and again if preempted.

  python scripts/launch_tpu.py --config=configs/imagenet.py:widenet_b --tpu=v3-256 \\
      --zone=europe-west4-a --workdir=gs://BUCKET/widenet_b --dry_run
  python scripts/launch_tpu.py status|logs|stop|delete NAME --zone=europe-west4-a

--config.FIELD=VALUE sets fields, as in training. Every command that is run is printed. Exit codes:
those of the run; 2 your input; 3 the launch or the run failed.
"""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code.

    Raises:
      BadInputError, RunFailedError: the launch cannot be, or failed.
    """
    if argv and argv[0] in VERBS:
        return manage(argv[0], argv[1:])
    return launch(argv)


def common_flags(made: Parser) -> None:
    made.add_argument("--zone", required=True, help="europe-west4-a, ...")
    made.add_argument("--project", default="", help="gcloud's default project without it")
    made.add_argument("--backend", default="tpu-vm", choices=BACKENDS)
    made.add_argument("--cluster", default="", help="of GKE, for --backend=gke")
    made.add_argument("--dry_run", action="store_true", help="print the commands, run none")
    made.add_argument("--poll_seconds", type=float, default=20.0, help="between looks at the TPU")


def launch(argv: Sequence[str]) -> int:
    made = Parser(USAGE)
    add = made.add_argument
    add("--config", required=True, help="FILE.py or FILE.py:ARGUMENT")
    add("--workdir", required=True, help="gs://...: all workers write there, and resume from it")
    add("--tpu", required=True, help="v3-256, v5e-16, ...")
    common_flags(made)
    add("--name", help="of the TPU; from the config without it")
    add("--spot", action="store_true", help="cheaper, and may be preempted")
    add("--runtime_version", default="", help="another TPU VM image than the generation's usual")
    add("--skip_plan", action="store_true", help="do not compile for the TPU first")
    add("--delete_when_done", action="store_true", help="delete the TPU when the run has succeeded")
    options, flags = made.parse_known_args(list(argv))
    job = job_of(options, flags, made.names())
    backend = backend_of(options, job)
    if not options.skip_plan:
        plan = plan_of(options.config, job.tpu.name, flags)
        print(plan_line(plan), file=sys.stdout if options.dry_run else sys.stderr, flush=True)
        check_fits(plan, job.tpu.name)
    code = backend.launch()
    if isinstance(backend, CloudTpu) and (options.delete_when_done or not options.dry_run):
        finish(backend, code, delete=options.delete_when_done)
    return code


def finish(backend: CloudTpu, code: int, *, delete: bool) -> None:
    """After the run: the TPU is deleted, or said to be there still."""
    job = backend.job
    if delete and code == 0:
        backend.delete()
    else:
        place = [f"--zone={job.zone}", *([f"--project={job.project}"] if job.project else [])]
        place += ["--backend=queued-resource"] if backend.queued else []
        print(
            f"the run ended with exit code {code}; {job.name} still costs money: "
            f"scripts/launch_tpu.py delete {job.name} {' '.join(place)}",
            file=sys.stderr,
        )


def job_of(options: Any, flags: Sequence[str], own: Sequence[str]) -> Job:
    """Checks everything that can be known before anything is made."""
    tpu = parse_tpu(options.tpu)
    config = check_config(options.config)
    fields = load_config(options.config)
    override(fields, ["launch", *flags], own)
    check_places(fields)
    if not options.workdir.startswith("gs://"):
        raise BadInputError(
            f"--workdir={options.workdir}: give a gs:// directory, which all workers share and "
            "which outlives the TPU"
        )
    return Job(
        name=check_name(options.name or default_name(options.config)),
        tpu=tpu,
        zone=options.zone,
        arguments=(
            *(f"--config={config}", f"--workdir={options.workdir}", "--distributed"),
            *flags,
        ),
        project=options.project,
        spot=options.spot,
        runtime_version=options.runtime_version,
        cluster=options.cluster,
    )


def backend_of(options: Any, job: Job) -> CloudTpu | SkyPilot | Gke:
    tools = Tools(job.tpu.name, job.zone, dry=options.dry_run)
    if options.backend == "skypilot":
        return SkyPilot(job, tools)
    if options.backend == "gke":
        return Gke(job, tools)
    queued = options.backend == "queued-resource"
    return CloudTpu(job, tools, queued=queued, poll_seconds=options.poll_seconds)


def manage(verb: str, argv: Sequence[str]) -> int:
    """status, logs, stop (the run saves and ends, a Cloud TPU stays), delete."""
    made = Parser(USAGE)
    made.add_argument("name")
    common_flags(made)
    options = made.parse_args(list(argv))
    # Which TPU it is plays no part here, but for GKE, which would refuse one that it has not.
    job = Job(check_name(options.name), parse_tpu("v4-8"), options.zone, (), options.project,
              cluster=options.cluster)  # fmt: skip
    said = getattr(backend_of(options, job), verb)()
    if said:
        print(said)
    return 0
