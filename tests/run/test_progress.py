"""The progress bar and the progress lines."""

import pytest

from widenet_jax.run.progress import Progress


class Clock:
    """Replaces the time module: `now` moves only when a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("widenet_jax.run.progress.time", made)
    return made


def test_progress_line(clock: Clock, capsys: pytest.CaptureFixture):
    """Step 11 comes 10 s after step 1: one step of 32 sequences a second, 1,189 steps left."""
    progress = Progress(
        total_steps=1200, start_step=0, batch_size=32, unit="sequences", quiet=False
    )
    clock.now += 50  # compiling
    for step in range(1, 12):
        progress.advance(step, lambda: "loss 0.1235")
        clock.now += 1
    assert capsys.readouterr().err == (
        "step 11/1,200 (1%), 32 sequences/s, 0:19:49 left, loss 0.1235\n"
    )


def test_evaluating_does_not_slow_the_rate(clock: Clock):
    progress = Progress(total_steps=9, start_step=0, batch_size=10, unit="images", quiet=True)
    progress.advance(1, str)
    with progress.pause():
        clock.now += 1000
    clock.now += 2
    progress.advance(2, str)
    assert progress.per_second() == 5.0


def test_a_quiet_host_prints_nothing(
    clock: Clock, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)  # and draws no bar
    progress = Progress(total_steps=2, start_step=0, batch_size=1, unit="images", quiet=True)
    for step in (1, 2):
        progress.advance(step, str)
        clock.now += 100
    progress.note("hello")
    progress.close()
    assert capsys.readouterr() == ("", "")


class Terminal:
    """A stderr that claims to be a terminal and keeps what is written to it."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = Progress(total_steps=4, start_step=1, batch_size=8, unit="images", quiet=False)
    for step in (2, 3, 4):
        progress.advance(step, lambda: "loss 0.5000")
    progress.note("a line above the bar")
    progress.close()
    last = terminal.text.rstrip("\n").split("\r")[-1]
    assert "100%" in last and "4/4" in last and "loss 0.5000" in last
    assert "a line above the bar\n" in terminal.text
