# Sets up, starts and observes the run on a worker of a TPU: bash widenet_run/worker.sh VERB.
# Beside it lie code.tar.gz, command.sh (the run's command) and env (the secrets).

cd ~/widenet_run || exit 1
alive() { kill -0 "$(cat run.pid 2> /dev/null)" 2> /dev/null; }

case "$1" in
  setup)
    set -eu
    chmod 600 env
    # The remains of a run that lost a worker cannot save.
    if alive; then kill -KILL "$(cat run.pid)"; fi
    python3 -m pip install --user --quiet --upgrade uv
    rm -rf code && mkdir code && tar -xzf code.tar.gz -C code
    # TPU VM images have Python 3.10; uv installs 3.12 beside it.
    [ -x venv/bin/python ] || python3 -m uv venv --quiet --python 3.12 venv
    python3 -m uv pip install --quiet --python venv/bin/python -e "./code[tpu,gcs,wandb]"
    ;;
  start)  # detached from the ssh connection; gcloud may repeat this where a connection breaks
    if alive; then exit 0; fi
    rm -f run.pid run.exit
    mv -f run.log run.log.old 2> /dev/null
    setsid nohup bash worker.sh run < /dev/null > /dev/null 2>&1 &
    until [ -s run.pid ]; do sleep 0.1; done
    ;;
  run)  # run.exit is written last: once it exists, the run has ended
    cd code || exit 1
    set -a; . ../env; set +a
    bash ../command.sh >> ../run.log 2>&1 &
    echo $! > ../run.pid
    wait $!
    echo $? > ../run.exit
    ;;
  job)  # prints the hash of the command of the run that is alive, or nothing
    if alive; then sha256sum < command.sh; fi
    ;;
  state)  # prints "running", "exit CODE", or "lost" if the run left no code
    if alive; then echo running; exit; fi
    [ -s run.exit ] || sleep 2  # written a moment after the run has ended
    if [ -s run.exit ]; then echo "exit $(cat run.exit)"; else echo lost; fi
    ;;
  log)  # prints the last $2 lines of the log, and further ones until the run ends
    exec tail -n "$2" -s 0.2 -F --pid="$(cat run.pid)" run.log
    ;;
  end_of_log)
    tail -n 10 run.log | sed "s/^/$(hostname): /"
    ;;
  status)
    bash worker.sh state
    tail -n 1 run.log 2> /dev/null || true
    ;;
  stop)  # the run saves and ends
    kill -TERM "$(cat run.pid)"
    ;;
esac
