"""As modal.exception."""


class NotFoundError(Exception):
    """What was asked for is not there."""


class AuthError(Exception):
    """Who asks is not known."""
