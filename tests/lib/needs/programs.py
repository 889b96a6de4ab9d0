"""Programs and libraries that lie in the directory itself."""

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys

from .base import check, fails, get, in_child, opened, put

SLEEP = "/usr/bin/sleep"


def place(source, name, mode=0o755):
    shutil.copyfile(source, name)
    os.chmod(name, mode)


@check
def programs_run(_):
    place("/usr/bin/cat", "cat")
    put("text", b"read by a program\n")
    here = os.getcwd()
    assert subprocess.run(["./cat", "text"], capture_output=True, check=True).stdout == b"read by a program\n"
    assert subprocess.run([os.path.join(here, "cat"), "text"], capture_output=True, check=True).stdout
    put("script", b"#!/bin/sh\necho \"$0 $1\"\n", 0o755)
    os.chmod("script", 0o755)
    assert subprocess.run(["./script", "a"], capture_output=True, check=True).stdout == b"./script a\n"
    # The interpreter is here as well.
    put("shown", f"#!{here}/cat\nline\n".encode())
    os.chmod("shown", 0o755)
    assert subprocess.run(["./shown"], capture_output=True, check=True).stdout == get("shown")
    os.mkdir("d")
    put("no mode", b"#!/bin/sh\n")
    os.chmod("no mode", 0o644)
    for path in ("./no mode", "./d"):
        with fails(errno.EACCES):
            os.execv(path, [path])
    put("plain", b"neither\n")
    os.chmod("plain", 0o755)
    with fails(errno.ENOEXEC):
        os.execv("./plain", ["plain"])
    with fails(errno.ENOENT):
        os.execv("./missing", ["missing"])
    put("no interpreter", f"#!{here}/nothing\n".encode())
    os.chmod("no interpreter", 0o755)
    with fails(errno.ENOENT):
        os.execv("./no interpreter", ["x"])
    # By descriptor, and found again through /proc.
    with opened("cat") as fd:
        in_child(lambda: os.execve(fd, ["cat", "/dev/null"], {}))
    shown = subprocess.run(["./cat", "/proc/self/maps"], capture_output=True, check=True).stdout.decode()
    assert f"{here}/cat" in shown
    place("/usr/bin/readlink", "readlink")
    assert subprocess.run(["./readlink", "/proc/self/exe"], capture_output=True, check=True).stdout.decode() \
        == f"{here}/readlink\n"


@check
def a_running_program_is_busy(_):
    """ETXTBSY both ways; removing and replacing it is no problem."""
    place(SLEEP, "sleep")
    with subprocess.Popen(["./sleep", "60"]) as process:
        try:
            for go in (lambda: os.open("sleep", os.O_WRONLY), lambda: os.open("sleep", os.O_RDWR | os.O_TRUNC),
                       lambda: os.truncate("sleep", 0)):
                with fails(errno.ETXTBSY):
                    go()
            assert get("sleep") == get(SLEEP)
            place("/usr/bin/true", "new")
            os.rename("new", "sleep")
            subprocess.run(["./sleep"], check=True)
            os.unlink("sleep")
            assert process.poll() is None
            assert get(f"/proc/{process.pid}/exe") == get(SLEEP)
        finally:
            process.kill()
    place("/usr/bin/true", "open")
    with opened("open", os.O_WRONLY):
        with fails(errno.ETXTBSY):
            os.execv("./open", ["open"])
    subprocess.run(["./open"], check=True)


@check
def shared_libraries_load(_):
    """Mapped to execute, used, and replaced by a rename under those who use them."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        libc_path = re.search(r"\S*/libc\.so\.6$", maps.read(), re.MULTILINE).group(0)
    source = os.path.join(os.path.dirname(libc_path), "libm.so.6")
    place(source, "libours.so")
    here = os.getcwd()

    def use():
        library = ctypes.CDLL(os.path.join(here, "libours.so"))
        library.cos.restype, library.cos.argtypes = ctypes.c_double, [ctypes.c_double]
        assert library.cos(0.0) == 1.0
        with open("/proc/self/maps", encoding="utf-8") as mine:
            assert re.search(rf"r-xp .*{re.escape(here)}/libours\.so$", mine.read(), re.MULTILINE)
        put("new", b"not a library")
        os.rename("new", "libours.so")
        assert library.cos(0.0) == 1.0
        library.fmod.restype, library.fmod.argtypes = ctypes.c_double, [ctypes.c_double] * 2
        assert library.fmod(7.5, 2.0) == 1.5, "a page that was not read before the rename"
    in_child(use)
    assert get("libours.so") == b"not a library"


@check
def modules_are_imported_and_compiled(_):
    """Python's own cache of compiled modules follows the sources' times and sizes."""
    os.mkdir("package")
    put("package/__init__.py")
    program = "import sys; sys.path.insert(0, '.'); from package import part; print(part.VALUE, part.__cached__)"

    def run():
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True,
                                env={"PATH": os.environ["PATH"]})
        return result.stdout.split()
    for value in (b"1", b"2", b"10"):
        put("package/part.py", b"VALUE = " + value + b"\n")
        os.utime("package/part.py", ns=(10**18, 10**18 + int(value) * 10**9))
        for _ in range(2):
            shown, cached = run()
            assert shown == value
            assert os.path.exists(cached)
