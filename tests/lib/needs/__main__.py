import os
import sys

from . import CHECKS


def main(name, directory, other):
    os.umask(0o022)
    os.chdir(directory)
    CHECKS[name](other)


main(sys.argv[1], sys.argv[2], sys.argv[3])
