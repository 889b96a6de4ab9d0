"""Unix sockets at paths of any length."""

import contextlib
import os
import socket


@contextlib.contextmanager
def bound_socket(path):
    """A socket bound at path, which may be longer than an address has room for."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
            yield bound
    finally:
        os.close(directory)
