"""What tools need from a directory, as checks that each pass on a local filesystem.

    python3 -m needs CHECK DIRECTORY OTHER [DIRECTORY OTHER]…

runs one check in an empty DIRECTORY, and then in the next; OTHER is an empty directory that nothing can be
renamed or linked to from there. A check that fails ends the program with a traceback. This is a
program of its own, with nothing but the standard library, so that a copy of it can be run by
any user.
"""

from . import attributes, content, mappings, names, opening, programs, tools, transfer, users  # each adds its checks
from .base import CHECKS

__all__ = ["CHECKS", "attributes", "content", "mappings", "names", "opening", "programs", "tools", "transfer", "users"]
