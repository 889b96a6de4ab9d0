/* The driver: one thread, one event loop, which owns the kernel's device, the connection to
 * the service, and everything they lead to. No function of the driver blocks; other threads
 * exist only to connect (connection.c) and to unmount (stop.c), and touch nothing here. */
#pragma once

#include <event2/event.h>

#include "client/client.h"
#include "config/config.h"
#include "handle.h"
#include "inode.h"
#include "options.h"

struct coherence;
struct connection;
struct control;
struct create_ahead;
struct device;
struct disk;
struct interrupts;
struct join;
struct member;
struct pipeline;
struct prefetch;
struct request;
struct stop;
struct supervisor;

#define DRIVER_AGENT "berthfs " BERTH_VERSION
#define DRIVER_TYPES 0x0300 /* message numbers the driver counts */

struct request_queue {
    struct request *first;
    struct request **last;
};

struct driver {
    struct event_base *base;
    const struct options *options;
    const struct client_settings *settings;
    const char *mountpoint; /* absolute */
    uid_t uid;              /* who mounts, and how files are shown */
    gid_t gid;

    struct join *join;     /* of a joined mount's root; NULL: it is none */
    struct member *member; /* whose driver this is in a joined mount; NULL: in none */

    struct inode_table inodes;
    struct handle_table handles;
    struct table workspaces; /* inode ID -> struct workspace_ids of roots we know */
    struct event *notices;
    struct event *drops;
    struct event *late; /* open_late */

    struct visibility_rules *rules; /* of this mount, as the service has them; NULL: none */
    struct connection *connection;
    struct client *client;    /* NULL while there is no connection */
    uint64_t lost_ns;         /* when there was one last */
    struct client *suspended; /* meanwhile: its session, which may go on, with calls in flight */
    struct control *control;  /* by which others on this machine use it; NULL: they do not */
    char *control_path;
    bool abandoning;      /* these are being given up, */
    bool locks_abandoned; /* and LOCK_SETs were among them */
    struct request_queue waiting;
    struct event *waiting_timer;
    struct request_queue lookups; /* that wait for what is being read ahead */
    struct table inode_repairs;   /* inode ID -> struct repair under way */
    struct table handle_repairs;  /* handle ID -> struct repair under way */

    struct table locks; /* inode ID -> struct lock_owner and others of it (lock.c) */
    size_t lock_owners;
    size_t lock_recoveries;  /* requests under way that take locks again; others wait for them */
    uint8_t lock_secret[16]; /* see LOCK_CLAIM */
    uint32_t lock_claimed;   /* connection on which we have claimed */
    uint32_t lock_ready;     /* connection on which locks can be taken again */

    size_t sequence_bytes;     /* sequence.c */
    struct prefetch *prefetch; /* NULL: nothing has been asked for in advance */

    struct disk *disk;     /* NULL: contents are kept in memory alone */
    struct table recalled; /* slot of a workspace -> whether its listings were on disk (recall.c) */
    size_t recalling;      /* READTREEs under way that ask for digests */

    struct workspace_listing *workspaces_seen; /* with disconnected=serve; NULL: never */

    size_t naming; /* MKDIR and RENAME under way: a name may lead to a directory in a moment */

    struct climbs *climbs; /* NULL: there were none (climb.c) */

    struct device *device;
    struct coherence *coherence;   /* NULL: nothing is kept */
    struct interrupts *interrupts; /* NULL: none has been */
    struct pipeline *pipeline;
    struct create_ahead *create_ahead; /* NULL: nothing has been delegated */
    struct stop *stop;
    struct supervisor *supervisor;

    struct wire_attr root_attr;     /* of a workspace that is the mount's root, as last seen */
    struct wire_statfs_reply space; /* as last seen */
    uint64_t space_ns;              /* when; 0: never */
    bool space_asked;
    time_t mounted_at;

    struct {
        uint64_t requests[DRIVER_TYPES]; /* sent, by message number */
        uint64_t reconnects;
        uint64_t resumes;     /* of these, on which the session went on */
        uint64_t round_trips; /* of earlier connections */
        uint64_t blocking;
        uint64_t unlisted; /* entries that rules left out of listings */
        uint64_t hidden;
        uint64_t content_received; /* bytes of files in answers to READFILES */
        uint64_t locks_lost;       /* owners whose locks were not to be had again */
        uint64_t links_refused;    /* readlinks answered with EACCES */
    } stats;

    bool unheard; /* the log is still the terminal of who mounts, for failures alone */
    void (*ready)(void *context); /* the kernel may use the mount */
    void *ready_context;
    bool stopping;
    int result; /* of the driver, when the loop has ended */
};

/* A workspace root's full thread ID. */
struct workspace_ids {
    size_t len;
    uint8_t thread_id[];
};

/* Sets up everything but device and connection. -ENOMEM, -EIO (no event base). */
int driver_init(struct driver *d, struct failure *ret_failure);
void driver_release(struct driver *d);

/* Sends the FORGET and RELEASE notices that are due, with those that become due in this turn
 * of the loop. */
void driver_notices_pending(struct driver *d);

/* Remembers the thread ID of a workspace root. -ENOMEM. */
int driver_note_workspace(struct driver *d, struct inode *inode, struct bytes thread_id);
const struct workspace_ids *driver_workspace(const struct driver *d, const struct inode *inode);

/* The client whose session holds what this mount has at the service: the one there is, or a
 * suspended one, which sends when it has a connection again. NULL: there is none. */
static inline struct client *driver_session(const struct driver *d)
{
    return d->client ? d->client : d->suspended;
}

/* Ends the loop; result is the driver's. A member of a joined mount whose service is another one
 * now
 * (-ESTALE) ends alone. */
void driver_end(struct driver *d, int result);

/* The number of a file as this mount shows it. */
uint64_t driver_ino(const struct driver *d, uint64_t ino);
