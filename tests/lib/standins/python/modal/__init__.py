"""A stand-in for the Python package modal: of its documented interface what contrib/providers/modal_sandbox.py uses,
with the arguments that are documented and no others."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from lib.standins import box  # pylint: disable=wrong-import-position
from modal.exception import NotFoundError  # pylint: disable=wrong-import-position


class App:
    """An app has sandboxes."""

    def __init__(self, name):
        self.name = name
        self.app_id = "ap-" + name

    @classmethod
    def lookup(cls, name, *, create_if_missing=False):
        assert create_if_missing
        return cls(name)


class Image:
    """An image of a registry."""

    def __init__(self, tag):
        self.tag = tag

    @classmethod
    def from_registry(cls, tag):
        return cls(tag)


class _Input:
    def __init__(self, pipe):
        self.pipe, self.waiting, self.ended = pipe, b"", False

    def write(self, data):
        assert isinstance(data, bytes)
        self.waiting += data

    def write_eof(self):
        self.ended = True

    def drain(self):
        try:
            self.pipe.write(self.waiting)
            self.pipe.flush()
            if self.ended:
                self.pipe.close()
        except BrokenPipeError:
            pass
        self.waiting = b""


class _Output:
    def __init__(self, pipe):
        self.pipe = pipe

    def __iter__(self):
        return iter(lambda: self.pipe.read1(65536), b"")

    def read(self):
        return self.pipe.read()


class _Process:
    def __init__(self, name, words):
        script = "import sys; sys.path.insert(0, sys.argv[1]); from lib.standins import box; " \
                 "box.execute(sys.argv[2], sys.argv[3:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(Path(__file__).resolve().parents[4]), name, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.stdin = _Input(self.process.stdin)
        self.stdout = _Output(self.process.stdout)
        self.stderr = _Output(self.process.stderr)

    def wait(self):
        return self.process.wait()


class Sandbox:
    """A sandbox, of which the box's name is the ID behind "sb-"."""

    def __init__(self, about):
        self.about = about
        self.object_id = "sb-" + about["name"]

    @classmethod
    def create(cls, *args, app, name, image, timeout=300, block_network=False, memory=None, cpu=None):
        assert args == ("sleep", "infinity") and 0 < timeout <= 86400 and isinstance(app, App) and len(name) < 64
        box.create(name.replace("-", ""), called=name, app=app.app_id, image=image.tag, network=not block_network,
                   memory=memory, cpu=cpu, tags={})
        return cls(box.find(name.replace("-", "")))

    @classmethod
    def _find(cls, wanted):
        for about in box.boxes():
            if wanted(about):
                return cls(about)
        raise NotFoundError("Sandbox not found")

    @classmethod
    def from_id(cls, sandbox_id):
        return cls._find(lambda about: "sb-" + about["name"] == sandbox_id)

    @classmethod
    def from_name(cls, app_name, name):
        return cls._find(lambda about: about["called"] == name and about["app"] == "ap-" + app_name)

    @classmethod
    def list(cls, *, app_id, tags):
        for about in box.boxes():
            has = box.notes(about["name"])
            if about["app"] == app_id and all(has.get(key) == value for key, value in tags.items()):
                yield cls(about)

    def set_tags(self, tags):
        box.note(self.about["name"], tags)

    def exec(self, *args, text=True):
        assert not text
        if not box.is_running(self.about["name"]):
            raise NotFoundError("Sandbox has ended")
        return _Process(self.about["name"], args)

    def terminate(self):
        box.destroy(self.about["name"])

    def poll(self):
        return None if box.is_running(self.about["name"]) else 137
