"""Provider profiles, and what is behind them in tests: stand-ins for vendors' programs, and what is left
of them at the end."""

import json
import os
import shutil
from pathlib import Path

from lib.harness import REPOSITORY, RUN_TIMEOUT
from lib.standins import box

STANDINS = REPOSITORY / "tests" / "lib" / "standins"
PROFILES = REPOSITORY / "contrib" / "providers"

# Everything that a profile can have, for the program that is no vendor's.
PLAIN = {
    "profile": 1, "name": "plain", "summary": "a test's", "tried": "stand-in", "needs": ["plainbox"],
    "parameters": {"image": {"default": "small", "help": "the image", "pattern": "^[a-z0-9:.]+$"},
                   "note": {"default": "", "help": "anything"}},
    "create": [{"run": ["plainbox", "create", "--name", "{name}", "--owner", "{owner}", "{policy}", "{image}"],
                "timeout": 20}],
    "install": [{"run": ["plainbox", "put", "{sandbox}", "/usr/local/bin/berthd"], "stdin": "{berthd}"}],
    "connect": ["plainbox", "exec", "{sandbox}", "/usr/local/bin/berthd", "--stdio"],
    "destroy": [{"run": ["plainbox", "destroy", "{sandbox}"]}],
    "gone": {"status": [1], "text": ["no such box"]},
    "status": {"run": ["plainbox", "state", "{sandbox}"], "states": {"up": "ready", "down": "stopped"}},
    "list": {"run": ["plainbox", "list", "--owner", "{owner}"]},
    "policy": {"network": {"none": ["--no-network"]}, "memory": ["--memory", "{value}"],
               "inside": ["pids", "network", "open_files"]},
}


class Sandboxes:
    """What one test has of providers. env: for berth, which finds profiles and stand-ins."""

    def __init__(self, harness):
        self.harness = harness
        self.state = harness.short / "standins"
        self.state.mkdir()
        self.profiles = harness.new_path("providers")
        self.profiles.mkdir(mode=0o755)
        self.env = {**harness.env, "BERTH_PROVIDERS": f"{self.profiles}:{PROFILES}",
                    "BERTH_STATIC_BERTHD": harness.program("berthd"), "BERTH_PERSIST": "0",
                    "STANDIN_STATE": str(self.state), "PYTHONDONTWRITEBYTECODE": "1",
                    "PATH": f"{STANDINS}:{harness.env['PATH']}"}
        self.places = Path(harness.env["XDG_STATE_HOME"]) / "berth-client" / "places"
        box.STATE = self.state

    def profile(self, base=PLAIN, **changes):
        """Writes a profile; None takes a key away."""
        document = {key: value for key, value in {**base, **changes}.items() if value is not None}
        path = self.profiles / f"{document['name']}.json"
        path.write_text(json.dumps(document))
        path.chmod(0o644)
        return document["name"]

    def berth(self, *argv, timeout=RUN_TIMEOUT, **keywords):
        return self.harness.run_berth(*argv, env={**self.env, **keywords.pop("more", {})}, timeout=timeout, **keywords)

    def boxes(self):
        return box.boxes()

    def misbehave(self, word, text=""):
        (self.state / word).write_text(text)

    def behave(self, word):
        (self.state / word).unlink()

    def calls(self):
        """What the stand-ins were asked, in order."""
        log = self.state / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def place(self, name):
        return json.loads((self.places / f"{name}.json").read_text())

    def place_names(self):
        if not self.places.exists():
            return []
        return sorted(name for name in os.listdir(self.places) if not name.startswith("."))

    def close(self):
        box.STATE = self.state
        box.destroy_all()
        shutil.rmtree(self.state, ignore_errors=True)
