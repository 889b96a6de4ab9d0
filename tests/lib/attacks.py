"""What commands of a workspace might try, and what stops it: one table, which tests/hostile/test_attacks.py
tries and docs/attacks.md shows (`ninja attack-table`).

An attack has its layers in the order in which they are met, each with what it answers; the first that is in
force decides, and where none is, the attack comes through. So the answer at each level follows from one list,
as does the control: without all of them it must come through, or it is no evidence."""

from dataclasses import dataclass

MECHANISMS = ("pid-namespace", "mount-namespace", "net-namespace", "ipc-namespace", "uts-namespace", "landlock",
              "seccomp", "no-new-privs", "capabilities")

# What goes with it.
TAKES_ALONG = {"pid-namespace": {"mount-namespace", "net-namespace", "ipc-namespace", "uts-namespace"},
               "no-new-privs": {"landlock", "seccomp"}}


@dataclass(frozen=True)
class Setting:
    """What a service is without, and what its workspace's policy gives up because it could not be had."""
    mechanisms: tuple
    policy: tuple = ()

    @staticmethod
    def of(*mechanisms):
        away = set(mechanisms)
        for mechanism in mechanisms:
            away |= TAKES_ALONG.get(mechanism, set())
        needs = {"filesystem": ({"mount-namespace", "landlock"}, {"mount-namespace", "seccomp"}),
                 "network": ({"net-namespace", "seccomp"},)}
        policy = tuple(field for field, missing in needs.items() if any(each <= away for each in missing))
        return Setting(tuple(mechanism for mechanism in MECHANISMS if mechanism in away), policy)

    def has(self, layer):
        """layer: "seccomp", "landlock and capabilities", "seccomp without net-namespace"."""
        names, missing = parse(layer)
        given_up = {"filesystem": ("mount-namespace", "landlock"), "network": ("net-namespace",)}
        open_to = [mechanism for field in self.policy for mechanism in given_up[field]]
        # What stands in for another does so only where it was asked for.
        if missing and missing[0] in open_to:
            return False
        away = {*self.mechanisms, *open_to}
        return away.isdisjoint(names) and away.issuperset(missing)

    def expects(self, attack):
        return next((answer for layer, answer in attack.layers if self.has(layer)), "through")


def parse(layer):
    """What must be in force, and what must be missing."""
    names, _, missing = layer.partition(" without ")
    return names.split(" and "), missing.split(" and ") if missing else []


LEVELS = {"full": Setting.of(), "no-userns": Setting.of("pid-namespace"), "minimal": Setting.of("seccomp")}
NOTHING = Setting.of(*MECHANISMS)


@dataclass(frozen=True)
class Attack:
    name: str
    what: str
    command: str  # of tests/hostile/attacks, with {names} of what the test has laid out
    layers: tuple = ()
    note: str = ""
    witness: int = 0  # a signal: it came through when the victim has had it

    def control(self):
        """Without all that stops it; None: without Berth, since what stops it is always there."""
        if any(layer == "service" for layer, _ in self.layers):
            return None
        return Setting.of(*(word for layer, _ in self.layers for words in parse(layer) for word in words))

    def alone(self, kept):
        """With one of its layers, and none of the others."""
        names, missing = parse(kept)
        others = {name for layer, _ in self.layers for name in parse(layer)[0]}
        return Setting.of(*missing, *others.difference(names))


def _files(answer="EACCES"):
    return (("mount-namespace", "ENOENT"), ("landlock", answer))


_MOUNTS = (("seccomp", "EPERM"), ("capabilities", "EPERM"), ("landlock", "EPERM"))
_SYSTEM = (("seccomp", "EPERM"), ("capabilities", "EPERM"))
_TRACE_SERVICE = (("pid-namespace", "ESRCH"), ("seccomp without pid-namespace and landlock", "EPERM"),
                  ("landlock", "EPERM"), ("capabilities", "EPERM"))
_TRACE_OTHERS = _TRACE_SERVICE[:-1]
_OTHERS = (("pid-namespace", "ESRCH"), ("landlock", "EPERM"))
_UNIX = (("seccomp without mount-namespace", "EACCES"), ("mount-namespace", "ENOENT"))
_NETWORK = (("net-namespace", "ECONNREFUSED"), ("seccomp without net-namespace", "EACCES"))

GROUPS = {
    "Files": [
        Attack("read", "a file of the machine's", "read {secret}", _files()),
        Attack("policy", "its own workspace's policy", "write {policy_file}", _files()),
        Attack("read-workspace", "a file of another workspace's", "read {other_secret}", _files()),
        Attack("climb", "`..` from the working directory", "climb {secret}", _files()),
        Attack("link", "an absolute link that it has made", "through-link {secret}", _files()),
        Attack("any-process", "`/proc/*/root` and `/proc/*/cwd` of all in sight", "any-process {secret}",
               (("mount-namespace", "nothing"), ("landlock", "nothing"))),
        Attack("proc-root", "`/proc/PID/root` of the keeper", "proc-root {keeper} {secret}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"), ("capabilities", "EACCES"))),
        Attack("proc-cwd", "`/proc/PID/cwd` of the keeper", "proc-cwd {keeper}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"), ("capabilities", "EACCES"))),
        Attack("proc-fd", "`/proc/PID/fd` of the keeper", "descriptors-of {keeper}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"), ("capabilities", "EACCES"))),
        Attack("proc-fd-other", "`/proc/PID/fd` of another workspace's command", "descriptors-of {other}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"))),
        Attack("handle", "a file by its handle (`open_by_handle_at`)", "handle {handle}",
               (("seccomp", "EPERM"), ("capabilities", "EPERM"))),
        Attack("hard-link", "a second name for a file outside", "hard-link {secret}",
               (("mount-namespace", "ENOENT"), ("landlock", "EXDEV"))),
        Attack("write", "writing to a file of the machine's", "write {secret}", _files()),
        Attack("make", "a new file beside the service's", "make {outside}", _files()),
        Attack("program", "a program that is run later by others", "write /usr/bin/factor",
               (("mount-namespace", "EACCES or EROFS"), ("landlock", "EACCES"))),
        Attack("service-program", "the service's own program", "write {program}", _files()),
        Attack("look", "whether a file outside exists", "look {secret}", (("mount-namespace", "ENOENT"),)),
        Attack("chmod", "the mode of a file outside", "chmod {secret}", (("mount-namespace", "ENOENT"),)),
        Attack("set-id-outside", "a set-user-ID file made of one outside", "make-set-id {secret}",
               (("mount-namespace", "ENOENT"), ("seccomp without mount-namespace", "EPERM"))),
        Attack("utimes", "the times of a file outside", "utimes {secret}", (("mount-namespace", "ENOENT"),)),
        Attack("xattr", "attributes of a file outside", "xattr {secret}", (("mount-namespace", "ENOENT"),)),
        Attack("watch", "names as they are made outside (inotify)", "watch {outside}",
               (("mount-namespace", "ENOENT"),)),
    ],
    "Descriptors": [
        Attack("inherited", "descriptors of the service's that were left open", "inherited", (("service", "nothing"),)),
        Attack("take-abstract", "a descriptor from an abstract socket of the machine's", "take-descriptor @{abstract}",
               (("seccomp without mount-namespace", "EACCES"), ("net-namespace", "ECONNREFUSED"),
                ("landlock", "EPERM"))),
        Attack("take-path", "a descriptor from a socket in another workspace", "take-descriptor {other_socket}",
               _UNIX),
        Attack("host-socket", "a socket of the machine's, such as that of a container engine",
               "unix-socket {host_socket}", _UNIX),
        Attack("service-socket", "the service's own socket, as its own user", "unix-socket {service_socket}", _UNIX),
        Attack("datagram", "a datagram to a socket of the machine's, from a pair", "send-from-pair {datagram_socket}",
               _UNIX),
    ],
    "Processes": [
        Attack("ptrace-service", "tracing the keeper", "ptrace {keeper}", _TRACE_SERVICE),
        Attack("ptrace-other", "tracing another workspace's command", "ptrace {other}", _TRACE_OTHERS),
        Attack("memory-service", "the keeper's memory (`process_vm_readv`)", "read-memory {keeper}", _TRACE_SERVICE),
        Attack("memory-other", "the memory of another workspace's command", "read-memory {other}", _TRACE_OTHERS),
        Attack("proc-mem", "`/proc/PID/mem` of another workspace's command", "open-memory {other}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"))),
        Attack("environment", "the environment of another workspace's command", "environment {other}",
               (("pid-namespace", "ENOENT"), ("landlock and capabilities", "EACCES"))),
        Attack("pidfd-getfd", "a descriptor of another workspace's command", "pidfd-getfd {other}", _TRACE_OTHERS),
        Attack("kcmp", "what another workspace's command shares", "kcmp {other}", _TRACE_OTHERS),
        Attack("limit", "limits of another workspace's command (`prlimit`), which can end it", "limit {other}",
               (("pid-namespace", "ESRCH"), ("seccomp without pid-namespace", "EPERM"))),
        Attack("slow-down", "the priority of another workspace's command", "slow-down {other}",
               (("pid-namespace", "ESRCH"), ("seccomp without pid-namespace", "EPERM"))),
        Attack("pin-down", "the processors of another workspace's command", "pin-down {other}",
               (("pid-namespace", "ESRCH"), ("seccomp without pid-namespace", "EPERM"))),
        Attack("oom-score", "the keeper made the first to be killed for want of memory", "oom-score {keeper}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"))),
        Attack("signal-service", "a signal to the service", "may-signal {service}", _OTHERS),
        Attack("signal-keeper", "a signal to the keeper", "may-signal {keeper}", _OTHERS),
        Attack("signal-other", "a signal to another workspace's command", "may-signal {other}", _OTHERS),
        Attack("signal-pidfd", "the same by a pidfd", "signal-pidfd {keeper}", _OTHERS),
        Attack("signal-all", "`kill -1`", "signal-all 23", (("pid-namespace", "nothing"), ("landlock", "nothing")),
               witness=23),
        Attack("signal-by-owner", "a signal by the kernel (`F_SETOWN`, `F_SETSIG`)", "signal-by-owner 28 {victim}",
               (("pid-namespace", "ESRCH"), ("landlock", "nothing")), witness=28),
    ],
    "Privileges": [
        Attack("set-user-id", "a program of another user's with the set-user-ID bit", "set-user-id {set_user_id}",
               (("no-new-privs", "nothing"), ("mount-namespace", "nothing"))),
        Attack("file-capabilities", "a program with capabilities", "file-capabilities {capable}",
               (("mount-namespace", "nothing"), ("capabilities", "EPERM"), ("no-new-privs", "nothing"))),
        Attack("gain-again", "to be without no_new_privs", "gain-again", (("no-new-privs", "EINVAL"),)),
        Attack("setuid", "another user's number", "setuid", (("capabilities", "EPERM"),)),
        Attack("chown", "a file given away", "chown", (("capabilities", "EPERM"),)),
        Attack("make-device", "a device made, and opened", "make-device 1 11",
               (("landlock", "EACCES"), ("capabilities", "EPERM"), ("mount-namespace", "EACCES"))),
        Attack("found-device", "a device that somebody has left in the workspace", "open-device {device}",
               (("mount-namespace", "EACCES"),)),
        Attack("disk", "the machine's disk", "open-device {disk}", _files()),
        Attack("kmsg", "`/dev/kmsg`", "open-device /dev/kmsg",
               (*_files(), ("capabilities", "EPERM"))),
        Attack("loop", "`/dev/loop-control`", "open-device /dev/loop-control", _files()),
    ],
    "Mounts and namespaces": [
        Attack("mount", "a mount", "mount", _MOUNTS),
        Attack("mount-cgroup", "cgroups, mounted", "mount-cgroup", _MOUNTS),
        Attack("umount", "unmounting", "umount", _MOUNTS),
        Attack("remount", "remounting", "remount", _MOUNTS),
        Attack("pivot-root", "`pivot_root`", "pivot-root", _MOUNTS),
        Attack("open-tree", "a copy of a mount (`open_tree`)", "open-tree", _SYSTEM),
        Attack("move-mount", "`move_mount`", "move-mount", _MOUNTS),
        Attack("fsopen", "a file system without a place (`fsopen`)", "fsopen", _SYSTEM),
        Attack("mount-setattr", "`mount_setattr`", "mount-setattr", _SYSTEM),
        Attack("chroot", "out of a root by `chroot` and `..`", "chroot {secret}",
               (("seccomp", "EPERM"), ("capabilities", "EPERM"), ("mount-namespace", "ENOENT"))),
        Attack("unshare-user", "a user namespace of its own", "unshare-user", (("seccomp", "EPERM"),)),
        Attack("clone-user", "the same by `clone`", "clone-user", (("seccomp", "EPERM"),)),
        Attack("clone3-user", "the same by `clone3`", "clone3-user", (("seccomp", "ENOSYS"),)),
        Attack("uncover", "what is hidden, from a user namespace of its own", "uncover /proc/keys",
               (("seccomp", "EPERM"), ("mount-namespace", "nothing"))),
        Attack("make-writable", "what is read-only, from a user namespace of its own", "make-writable /usr",
               (("seccomp", "EPERM"), ("landlock", "EPERM"), ("mount-namespace", "EPERM"))),
        Attack("mount-proc", "a `/proc` in which nothing is hidden", "mount-proc",
               (("seccomp", "EPERM"), ("landlock", "EPERM"), ("mount-namespace", "EPERM"))),
        Attack("setns", "the keeper's mount namespace", "setns {keeper}",
               (("pid-namespace", "ENOENT"), ("landlock", "EACCES"), ("capabilities", "EACCES"),
                ("seccomp", "EPERM"))),
    ],
    "The kernel": [
        Attack("bpf", "`bpf`", "bpf", _SYSTEM),
        Attack("perf", "`perf_event_open`, of a processor", "perf", (("seccomp", "EPERM"), ("capabilities", "EACCES"))),
        Attack("userfaultfd", "`userfaultfd`", "userfaultfd", (("seccomp", "EPERM"),)),
        Attack("io-uring", "`io_uring_setup`", "io-uring", (("seccomp", "ENOSYS"),)),
        Attack("keyring", "the user's keyring", "keyring", (("seccomp", "EPERM"),)),
        Attack("add-key", "a key", "add-key", (("seccomp", "EPERM"),)),
        Attack("module", "a module", "module", _SYSTEM),
        Attack("kexec", "another kernel", "kexec", _SYSTEM),
        Attack("reboot", "`reboot`", "reboot", _SYSTEM),
        Attack("swapon", "`swapon`", "swapon", _SYSTEM),
        Attack("acct", "`acct`", "acct", _SYSTEM),
        Attack("set-clock", "setting the clock", "set-clock", _SYSTEM),
        Attack("adjust-clock", "adjusting the clock", "adjust-clock", _SYSTEM),
        Attack("host-name", "the host's name", "host-name", (("capabilities", "EPERM"),)),
        Attack("kernel-log", "the kernel's log", "kernel-log", _SYSTEM),
        Attack("iopl", "input and output ports", "iopl", _SYSTEM),
        Attack("fanotify", "`fanotify_init`", "fanotify", (("seccomp", "EPERM"),)),
        Attack("int80", "the user's keyring, by another architecture's number", "int80", (("seccomp", "EPERM"),)),
        Attack("core-pattern", "`/proc/sys/kernel/core_pattern`: a program that the kernel runs as root",
               "write /proc/sys/kernel/core_pattern", (("mount-namespace", "EROFS"), ("landlock", "EACCES"))),
        Attack("sysrq", "`/proc/sysrq-trigger`", "write /proc/sysrq-trigger",
               (("mount-namespace", "nothing"), ("landlock", "EACCES"))),
        Attack("sys", "a setting in `/sys`", "write /sys/kernel/mm/transparent_hugepage/enabled", _files()),
        Attack("cgroup-procs", "out of its cgroup", "write {cgroup_procs}", _files()),
        Attack("release-agent", "a cgroup's `release_agent`", "write {release_agent}", _files()),
    ],
    "Network": [
        Attack("tcp", "a TCP port on the machine", "tcp 127.0.0.1 {tcp}", _NETWORK),
        Attack("tcp6", "the same by IPv6", "tcp ::1 {tcp}", _NETWORK),
        Attack("udp", "UDP", "udp 127.0.0.1 {udp}", _NETWORK),
        Attack("raw-socket", "a raw socket, as for ICMP", "raw-socket",
               (("seccomp without net-namespace", "EACCES"), ("capabilities", "EPERM"))),
        Attack("packet-socket", "a packet socket", "packet-socket",
               (("seccomp", "EACCES"), ("capabilities", "EPERM"))),
        Attack("vsock", "the machine's hypervisor (vsock)", "vsock", (("seccomp", "EACCES"),)),
        Attack("interface", "an interface's flags", "interface",
               (("seccomp without net-namespace", "EACCES"), ("capabilities", "EPERM"))),
    ],
    "Memory and queues that are shared": [
        Attack("shared-memory", "a segment of System V's", "shared-memory {key}",
               (("ipc-namespace", "ENOENT"), ("seccomp without ipc-namespace", "ENOSYS"))),
        Attack("message-queue", "a queue of System V's", "message-queue {key}",
               (("ipc-namespace", "ENOENT"), ("seccomp without ipc-namespace", "ENOSYS"))),
        Attack("semaphores", "semaphores of System V's", "semaphores {key}",
               (("ipc-namespace", "ENOENT"), ("seccomp without ipc-namespace", "ENOSYS"))),
        Attack("posix-queue", "a queue of POSIX's", "posix-queue {queue}",
               (("ipc-namespace", "ENOENT"), ("seccomp without ipc-namespace", "ENOSYS"), ("landlock", "EACCES"))),
        Attack("dev-shm", "a file in `/dev/shm`", "read {shm}", _files()),
    ],
    "Terminals": [
        Attack("type-into", "typing into a terminal (`TIOCSTI`)", "type-into",
               (("landlock without mount-namespace", "EACCES"), ("seccomp", "EPERM"))),
        Attack("console", "a console (`TIOCLINUX`)", "console /dev/tty1", (*_files(), ("seccomp", "EPERM"), ("capabilities", "EPERM"))),
        Attack("terminal", "a terminal of the machine's", "terminal {terminal}", _files()),
    ],
    "Numbers": [
        Attack("shared-full", "80 MiB in `/dev/shm`", "fill /dev/shm 80",
               (("mount-namespace", "ENOSPC"), ("landlock", "EACCES"))),
        Attack("shared-names", "5,000 files in `/dev/shm`", "fill-with-names /dev/shm 5000",
               (("mount-namespace", "ENOSPC"), ("landlock", "EACCES"))),
        Attack("root-names", "files in `/run`", "fill-with-names /run 100",
               (("mount-namespace", "EROFS"), ("landlock", "EACCES"))),
    ],
    "Not attacks": [
        Attack("memfd-exec", "a program that no file has", "memfd-exec", note="it is held as any other"),
        Attack("personality", "addresses that are not random", "personality", note="its own only"),
    ],
}

ATTACKS = {attack.name: attack for group in GROUPS.values() for attack in group}
