"""The check of gcloud's key, with a real ssh-agent and real keys."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from widenet_jax.ops.launch.requests import Tools, has_open_key

pytestmark = pytest.mark.skipif(not shutil.which("ssh-agent"), reason="OpenSSH is not installed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory whose owner runs no ssh-agent."""
    (tmp_path / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    socket = home / "agent"
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()  # printed once the socket exists
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        yield
        process.terminate()


def make_key(home: Path, name: str = "google_compute_engine", passphrase: str = "") -> str:
    path = str(home / ".ssh" / name)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


def test_without_an_agent_only_a_passphrase_is_a_problem(home: Path):
    assert has_open_key(Tools())  # gcloud will create the key
    make_key(home)
    assert has_open_key(Tools())
    for file in (home / ".ssh").iterdir():
        file.unlink()
    make_key(home, passphrase="secret")
    assert not has_open_key(Tools())


@pytest.mark.usefixtures("agent")
def test_an_agent_with_other_keys_must_hold_this_one(home: Path):
    assert has_open_key(Tools())  # an empty agent is like none
    subprocess.run(["ssh-add", "-q", make_key(home, "other")], check=True)
    assert not has_open_key(Tools())
    key = make_key(home)
    assert not has_open_key(Tools())
    subprocess.run(["ssh-add", "-q", key], check=True)
    assert has_open_key(Tools())
