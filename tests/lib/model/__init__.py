"""Random file operations on a mount, compared with the same on a local directory.

calls      what a process does in a directory, by name: one system call or a few
actor      a child process in a directory, which makes calls when told
strategies what Hypothesis makes calls of
pairs      actors on a mount and their doubles on a local directory, and the comparison
machines   the state machines
campaign   how long they run, and how a failure is shown
"""
