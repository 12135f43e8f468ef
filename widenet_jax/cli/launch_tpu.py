"""Trains on a Cloud TPU: creates it, sets it up, runs on all workers, restarts if preempted.

  python scripts/launch_tpu.py --config=configs/imagenet.py:widenet_b --tpu=v3-256 \\
      --zone=europe-west4-a --workdir=gs://BUCKET/widenet_b --dry_run
  python scripts/launch_tpu.py status|logs|stop|delete NAME --zone=europe-west4-a

--config.FIELD=VALUE sets fields, as in training. Flags such as --gcloud_flags="--network=NAME
--labels=team=vision" go to the command that creates the TPU. Every command is printed before it
runs. Exit codes: as the run's; 2 your input; 3 the launch or the run failed; 143 the run was
stopped and saved ("the run ended with exit code 143"), or the launcher received SIGTERM and the run
goes on.
"""

import re
import signal
import sys
from functools import partial

from widenet_jax.cli.plan import DATA_SIZES, add_data_flags, plan_line, plan_of
from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import Argv, Options, Parser, seconds
from widenet_jax.errors import STOPPED, BadInputError, raise_first, refuse
from widenet_jax.files import check_store
from widenet_jax.ops.launch import requests
from widenet_jax.ops.launch.following import CloudTpu
from widenet_jax.ops.launch.requests import Job, Tools
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.run.stopping import say

VERBS = ("status", "logs", "stop", "delete")
QUEUED = "queued-resource"


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    manages = bool(words) and words[0] in VERBS
    parser = Parser(__doc__, takes_fields=not manages)
    add = parser.add_argument
    add("--zone", required=True, help="europe-west4-a, ...")
    add("--project", default="", help="gcloud's default project by default")
    add("--backend", default="tpu-vm", choices=("tpu-vm", QUEUED))
    add("--dry_run", action="store_true", help="print the commands, run none")
    add("--poll_seconds", type=seconds, default=20.0, help="between checks of the TPU")
    if manages:
        add("verb")
        add("name")
        return parser.run(manage, words)
    add("--config", required=True, metavar="FILE[:VARIANT]")
    add("--workdir", required=True, help="gs://...: all workers write there, and resume from it")
    add("--tpu", required=True, help="v3-256, v5e-16, 2xv5e-256 (two slices), ...")
    add("--extend", action="store_true", help="as of training: a longer config.duration")
    add("--name", help="of the TPU; derived from the config by default")
    add("--spot", action="store_true", help="cheaper, and may be preempted")
    add("--runtime_version", default="", help="of the TPU VM image; by default the generation's")
    add("--gcloud_flags", default="", metavar="FLAGS", help="more flags of `gcloud ... create`")
    add("--skip_plan", action="store_true", help="do not compile for the TPU first")
    add_data_flags(add)
    add("--delete_when_done", action="store_true", help="delete the TPU when the run has succeeded")
    return parser.run(launch, words)


def launch(options: Options) -> int:
    """Runs a config on a TPU; however the launch ends, says that the TPU may still exist."""
    tpu = CloudTpu(job_of(options), Tools(dry=options.dry_run), options.poll_seconds)
    # A stopped sweep sends SIGTERM, which would end the process without the lines below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        code = tpu.launch(partial(show_plan, options))
        if options.delete_when_done and code == 0:
            tpu.delete_at_last()
        elif not options.dry_run:
            costs = f"{tpu.job.name} still costs money: {tpu.job.managing('delete')}"
            say(f"the run ended with exit code {code}; {costs}")
    except BaseException:  # Ctrl-C and SIGTERM, too
        if tpu.may_exist and not options.dry_run:
            say(f"{tpu.job.name} may exist and cost money: {tpu.job.managing('delete')}")
        raise
    return code


def show_plan(options: Options) -> None:
    """Prints the plan of the run, unless --skip_plan omits it.

    Raises:
      BadInputError: there is no plan, or the run does not fit.
    """
    if not options.skip_plan:
        sizes = {name: getattr(options, name) for name in DATA_SIZES}
        flags = [f"--{name}={size}" for name, size in sizes.items() if size]
        plan = plan_of(options.config, options.tpu, [*flags, *options.fields])
        if isinstance(plan, str) or not plan["fits"]:
            raise BadInputError(
                f"{plan_line(plan)} on --tpu={options.tpu}; scripts/plan.py prints what to change, "
                "and --skip_plan launches without this check"
            )
        print(plan_line(plan), file=sys.stdout if options.dry_run else sys.stderr, flush=True)


def job_of(options: Options) -> Job:
    """Returns the job, after every check that needs no gcloud.

    Raises:
      BadInputError: an impossible config, field, name or place.
    """
    shape = ":" in options.tpu  # which only `plan.py --topology` accepts
    refuse(f"--tpu={options.tpu}", (shape, "write generation and size, as in v3-256"))
    tpu = parse_topology(options.tpu, field="--tpu")
    apart = tpu.slices > 1 and options.backend != QUEUED
    refuse(f"--tpu={options.tpu}", (apart, f"several slices need --backend={QUEUED}"))
    config = requests.check_config(options.config)
    raise_first(requests.unreadable(override(load_config(options.config), options.fields)))
    here = not re.match("gs://[^/]", options.workdir)
    told = "give a gs:// directory, which all workers share and which outlives the TPU"
    refuse(f"--workdir={options.workdir}", (here, told))
    check_store(options.workdir)
    places = (f"--config={config}", f"--workdir={options.workdir}", "--distributed")
    return Job(
        name=requests.check_name(options.name or requests.default_name(options.config)),
        tpu=tpu,
        zone=options.zone,
        project=options.project,
        arguments=(*places, *["--extend"] * options.extend, *options.fields),
        queued=options.backend == QUEUED,
        spot=options.spot,
        runtime_version=options.runtime_version or tpu.chip.image,
        gcloud_flags=requests.split_gcloud_flags(options.gcloud_flags),
    )


def manage(options: Options) -> None:
    """Runs status, logs, stop (the run saves and ends, the TPU stays) or delete."""
    place = {"zone": options.zone, "project": options.project, "queued": options.backend == QUEUED}
    job = Job(requests.check_name(options.name), None, **place)
    text = getattr(CloudTpu(job, Tools(dry=options.dry_run)), options.verb)()
    if text:
        print(text)


if __name__ == "__main__":
    raise SystemExit(main())
