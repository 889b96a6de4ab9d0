/* Finding and removing everything that belongs to a command. Here by /proc: its process
 * group, its session, and all that descends from those it has seen; what left all three
 * (setsid and a double fork before the first look) escapes. A sweep by cgroup or by a
 * subreaper has the same interface. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kill_set;

/* leader: the command's first process, leader of its session and group. It must stay
 * unreaped for as long as the set lives, so that its number stays its own. -ENOMEM. */
int kill_set_new(pid_t leader, struct kill_set **ret);
void kill_set_free(struct kill_set *set);

/* Looks for members and remembers them. The number of those that live now, or a negative
 * errno. */
int kill_set_scan(struct kill_set *set);

/* Sends a signal to the process group at once, then looks for members and sends it to those
 * outside of the group one by one. The number that lived before; or a negative errno, the
 * group has then been signalled all the same. */
int kill_set_signal(struct kill_set *set, int signal);

/* How many of the processes ever seen are gone (ended, whether reaped or not), as of the last
 * scan. */
size_t kill_set_removed(const struct kill_set *set);
