"""What the harness raises."""


class HarnessError(AssertionError):
    """The harness found what no test may leave or show."""
