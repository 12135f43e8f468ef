"""The two ways a run may end badly, each reported to people as one line (see `main`)."""


class BadInputError(ValueError):
    """A user's mistake. The message says what is wrong, where, and how to fix it. Exit code 2."""


class RunFailedError(RuntimeError):
    """The run itself failed: a non-finite loss, no valid checkpoint. Exit code 3."""
