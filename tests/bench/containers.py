"""A container in which commands can be run beside `berth exec`, by an engine of our own."""

import subprocess

from lib import engines
from lib.failure import HarnessError

NAME = "berth-bench-exec"


class Container:
    """words: what goes before `exec NAME CMD`, and how the engine got to run; without words, reason says
    what came of each try."""

    def __init__(self, kinds, stack):
        self.words, self.how, tried = None, None, []
        for kind, *arguments in kinds:
            try:
                engine = kind(*arguments)
                stack.callback(engine.close)
                engine.make_image()
                engine.run("run", "--detach", "--name", NAME, "--network", "none", engine.image, "sleep", "3600")
                self.words, self.how = [engine.bin / engine.name], engine.how
                return
            except (HarnessError, subprocess.TimeoutExpired) as error:
                tried.append(str(error).strip().splitlines()[-1])
        self.reason = "; ".join(tried)


def podman(stack):
    return Container([(engines.Podman, "crun"), (engines.Podman, "runc")], stack)


def docker(stack):
    return Container([(engines.Docker,)], stack)
