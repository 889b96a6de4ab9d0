"""A service of an ordinary user, for tests that run as root."""

import os
import shutil

USER = 65534


def give(*paths):
    """To that user."""
    for path in paths:
        os.chown(path, USER, USER, follow_symlinks=False)


def let_in(path):
    """To what is in that directory."""
    for directory in (path, *path.parents):
        if directory != directory.parent and directory.stat().st_uid == os.geteuid():
            directory.chmod(directory.stat().st_mode | 0o011)


def ordinary_service(harness):
    """Its clients are root, whom it lets in."""
    place = harness.new_path("ordinary")
    place.mkdir()
    for directory in ("home", "bin"):
        (place / directory).mkdir()
    # The build's own may lie where that user cannot go.
    harness.binaries["berthd"] = shutil.copy(harness.program("berthd"), place / "bin")
    let_in(place)
    give(place, place / "home", harness.short)
    harness.short.chmod(0o755)
    env = {**harness.env, "HOME": str(place / "home"), "XDG_RUNTIME_DIR": str(place),
           # Who may not look at itself cannot search for leaks.
           "ASAN_OPTIONS": "detect_leaks=0"}
    return harness.start_service(root=place / "root", env=env, wrapper=[
        "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"])
