"""As modal.exception."""


class NotFoundError(Exception):
    """What was asked for is not there."""
