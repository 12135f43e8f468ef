"""Trains on a Cloud TPU: creates it, sets it up, runs on all workers, restarts if preempted.

  python scripts/launch_tpu.py --config=configs/imagenet.py:widenet_b --tpu=v3-256 \\
      --zone=europe-west4-a --workdir=gs://BUCKET/widenet_b --dry_run
  python scripts/launch_tpu.py status|logs|stop|delete NAME --zone=europe-west4-a

--config.FIELD=VALUE sets fields, as in training. Every command is printed before it runs. Exit
codes: those of the run; 2 your input; 3 the launch or the run failed.
"""

import argparse
import sys
from collections.abc import Sequence

from widenet_jax.cli.parser import Parser, exit_code_of, seconds
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in VERBS:
        return exit_code_of(lambda: manage(words[0], words[1:]))
    return exit_code_of(lambda: launch(words))


def common_flags(made: Parser) -> None:
    """Adds the flags that say where the TPU is and by what means it is reached."""
    made.add_argument("--zone", required=True, help="europe-west4-a, ...")
    made.add_argument("--project", default="", help="gcloud's default project by default")
    made.add_argument("--backend", default="tpu-vm", choices=BACKENDS)
    made.add_argument("--cluster", default="", help="of GKE, for --backend=gke")
    made.add_argument("--dry_run", action="store_true", help="print the commands, run none")
    made.add_argument(
        "--poll_seconds", type=seconds, default=20.0, help="between checks of the TPU"
    )


def launch(argv: Sequence[str]) -> int:
    """Runs a config on a TPU and returns the exit code."""
    made = Parser(__doc__)
    add = made.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]")
    add("--workdir", required=True, help="gs://...: all workers write there, and resume from it")
    add("--tpu", required=True, help="v3-256, v5e-16, ...")
    common_flags(made)
    add("--name", help="of the TPU; derived from the config by default")
    add("--spot", action="store_true", help="cheaper, and may be preempted")
    add("--runtime_version", default="", help="of the TPU VM image; by default the generation's")
    add("--skip_plan", action="store_true", help="do not compile for the TPU first")
    add("--delete_when_done", action="store_true", help="delete the TPU when the run has succeeded")
    options, fields = made.read(argv)
    job = job_of(options, fields)
    backend = backend_of(options, job)
    if not options.skip_plan:
        plan = plan_of(options.config, job.tpu.name, fields)
        print(plan_line(plan), file=sys.stdout if options.dry_run else sys.stderr, flush=True)
        check_fits(plan, job.tpu.name)
    code = backend.launch()
    if isinstance(backend, CloudTpu) and (options.delete_when_done or not options.dry_run):
        finish(backend, code, delete=options.delete_when_done)
    return code


def finish(backend: CloudTpu, code: int, *, delete: bool) -> None:
    """Deletes the TPU after the run, or says that it still exists."""
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


def job_of(options: argparse.Namespace, fields: Sequence[str]) -> Job:
    """Returns the job, after every check that can be made before anything is created.

    Raises:
      BadInputError: a config, field, name or place that cannot be.
    """
    tpu = parse_tpu(options.tpu)
    config = check_config(options.config)
    run_config = load_config(options.config)
    override(run_config, fields)
    check_places(run_config)
    if not options.workdir.startswith("gs://"):
        raise BadInputError(
            f"--workdir={options.workdir}: give a gs:// directory, which all workers share and "
            "which outlives the TPU"
        )
    name = check_name(options.name or default_name(options.config))
    arguments = (f"--config={config}", f"--workdir={options.workdir}", "--distributed", *fields)
    same = ("zone", "project", "spot", "runtime_version", "cluster")  # in options and in a job
    return Job(name, tpu, arguments=arguments, **{key: getattr(options, key) for key in same})


def backend_of(options: argparse.Namespace, job: Job) -> CloudTpu | SkyPilot | Gke:
    """Returns the means that --backend names, for this job."""
    tools = Tools(job.tpu.name, job.zone, dry=options.dry_run)
    if options.backend == "skypilot":
        return SkyPilot(job, tools)
    if options.backend == "gke":
        return Gke(job, tools)
    queued = options.backend == "queued-resource"
    return CloudTpu(job, tools, queued=queued, poll_seconds=options.poll_seconds)


def manage(verb: str, argv: Sequence[str]) -> int:
    """Runs status, logs, stop (the run saves and ends, a Cloud TPU stays) or delete."""
    made = Parser(__doc__)
    made.add_argument("name")
    common_flags(made)
    options, _ = made.read(argv, takes_fields=False)
    # These verbs ignore the TPU's kind. GKE would refuse one that it does not offer.
    job = Job(check_name(options.name), parse_tpu("v4-8"), options.zone, (), options.project,
              cluster=options.cluster)  # fmt: skip
    said = getattr(backend_of(options, job), verb)()
    if said:
        print(said)
    return 0
