/* The wire format: what messages.def describes, as C. Encoding and decoding are driven by
 * the table; nothing here does I/O or keeps state.
 *
 * A frame is a header of 16 bytes, little-endian, and a payload:
 *     u32 length   of the payload as it follows, compressed or not
 *     u16 type     a number of the table
 *     u16 flags    WIRE_FRAME_…
 *     u64 tag      the call it belongs to; 0 for NOTICE
 * A payload holds the message's fields in table order and nothing after them. The bounds of the
 * table and of HELLO are those of payloads before compression. */
#pragma once

#include "base/buffer.h"
#include "base/bytes.h"

#define WIRE_VERSION 1
#define WIRE_HEADER_SIZE 16
#define WIRE_NAME_MAX 255       /* NAME_MAX: one directory entry */
#define WIRE_THREAD_ID_MAX 1024 /* as promised to agent frameworks */
#define WIRE_DATA_MAX 0x100000  /* bytes in one READ or WRITE: the kernel's largest request */
#define WIRE_CHUNK_MAX 0x40000  /* bytes in one stream item: bounds the wait behind it */
#define WIRE_FILE_MAX 0x80000   /* bytes of a file that READFILES brings whole, */
#define WIRE_FILE_HEAD 0x20000  /* and of the two ends of a larger one */
#define WIRE_FILE_TAIL 0x40000
#define WIRE_FILES_MAX 512    /* files of one READFILES: bounds how long it holds a worker */
#define WIRE_RULES_MAX 32768  /* bytes of one set of visibility rules */
#define WIRE_POLICY_MAX 16384 /* bytes of a policy */
#define WIRE_LABELS_MAX 16384 /* bytes of a workspace's labels, as JSON */
#define WIRE_SELECTORS_MAX 64 /* of one WORKSPACE_LIST: bounds what each workspace costs it */
#define WIRE_SOURCE_MAX 1040  /* bytes of what a workspace is made from: an ID */
#define WIRE_LIFE_MAX_MS 600000000000 /* TTL and idle TTL: 19 years, so that times can be added */
#define WIRE_LOCK_END INT64_MAX     /* last byte of a lock that goes to the end, wherever that is */
#define WIRE_LOCK_WAITS_MAX 256     /* LOCK_SETs of one connection that may wait at a time */
#define WIRE_SNAPSHOT_ID_MAX 128    /* bytes of a snapshot's ID */
#define WIRE_TREE_PATH_MAX 4095     /* PATH_MAX: what one system call can be given */
#define WIRE_TREE_VALUE_MAX 0x10000 /* XATTR_SIZE_MAX; and file content in one element */
#define WIRE_TREE_ITEMS_MAX 2048    /* elements of one TREE_IN or TREE_OUT, */
#define WIRE_TREE_PART_MAX 0x18000  /* and bytes of them: fits twice into a call's first credit */
#define WIRE_PAYLOAD_MAX \
    0x400000                /* no frame is larger, whatever the table: bounds one frame's memory */
#define WIRE_ALSO_MAX 512   /* directories that a READTREE names beside the first; 8 bytes each */
#define WIRE_PARTS_MAX 1024 /* parts of a directory in one TREE */
#define WIRE_READPARTS_MAX 400 /* parts that one READPARTS asks for; 20 bytes each */
#define WIRE_ATTR_SIZE 108
#define WIRE_EXEC_ID_MAX 64 /* bytes of a command's ID */
#define WIRE_KEY_SIZE 16    /* bytes of a session's key: nobody guesses it */

/* For so long after it was lost the service keeps a session for its client, unless it has too
 * many. */
#define WIRE_PARK_MS 60000

/* For so long after a PING was sent that has been answered, a client may rely on having been told
 * of every change (SUBSCRIBE), by its own clock. */
#define WIRE_LEASE_MS 3000

enum wire_frame_flags {
    WIRE_FRAME_ZSTD_STREAM = 1, /* payload compressed in this direction's streaming context */
    WIRE_FRAME_ZSTD = 2,        /* payload compressed on its own */
};

enum wire_features {
    WIRE_FEATURE_ZSTD = 1,
    WIRE_FEATURE_CHANGES = 2, /* the service notices changes (SUBSCRIBE); no more than a promise */
    WIRE_FEATURE_RESUME = 4,  /* the session outlives its connection (WELCOME.key) */
    WIRE_FEATURE_USAGE = 8,   /* EXEC_USAGE and EGRESS_LOG are answered */
    WIRE_FEATURE_DELEGATION = 16,
};

enum wire_workspace_flags {
    WIRE_WORKSPACE_BY_NAME = 1,         /* the key is a directory name, not a thread ID */
    WIRE_WORKSPACE_EXCLUSIVE = 2,       /* create: EEXIST if it is there */
    WIRE_WORKSPACE_APPEND = 4,          /* set visibility: behind the rules there are */
    WIRE_WORKSPACE_FORCE = 8,           /* remove: its commands are ended */
    WIRE_WORKSPACE_FROM_STREAM = 16,    /* create: from the items that follow */
    WIRE_WORKSPACE_FROM_SNAPSHOT = 32,  /* create: source is a snapshot's ID */
    WIRE_WORKSPACE_FROM_WORKSPACE = 64, /* create: source is the thread ID of another */
    WIRE_WORKSPACE_LIVE = 128, /* with it: its commands run meanwhile, as in SNAPSHOT_CREATE */
};

/* What WORKSPACE_SET changes. */
enum wire_workspace_valid {
    WIRE_WORKSPACE_SET_LABELS = 1,
    WIRE_WORKSPACE_SET_MERGE = 2,
    WIRE_WORKSPACE_SET_TTL = 4,
    WIRE_WORKSPACE_SET_IDLE = 8,
    WIRE_WORKSPACE_SET_STATE = 16,
};

/* Numbers are wire format. */
enum wire_workspace_state {
    WIRE_WORKSPACE_RUNNING = 1,
    WIRE_WORKSPACE_STOPPED = 2,
};

enum wire_item_kind {
    WIRE_ITEM_DIRECTORY = 1,
    WIRE_ITEM_FILE = 2,
    WIRE_ITEM_SYMLINK = 3,
    WIRE_ITEM_HARD_LINK = 4,
    WIRE_ITEM_FIFO = 5,
    WIRE_ITEM_DATA = 6,
    WIRE_ITEM_XATTR = 7,
};

enum wire_snapshot_flags {
    WIRE_SNAPSHOT_LIVE = 1,   /* commands ran while it was taken */
    WIRE_SNAPSHOT_SHARED = 2, /* its files share their blocks with those they are copies of */
};

enum wire_set_flags {
    WIRE_SET_MODE = 1,
    WIRE_SET_UID = 2,
    WIRE_SET_GID = 4,
    WIRE_SET_SIZE = 8,
    WIRE_SET_ATIME = 16,
    WIRE_SET_MTIME = 32,
    WIRE_SET_ATIME_NOW = 64,
    WIRE_SET_MTIME_NOW = 128,
    WIRE_SET_KILL_PRIV = 256, /* clear set-uid and set-gid as write() and truncate() do */
    WIRE_SET_BEHIND = 512,    /* with SIZE and a handle: as WIRE_WRITE_BEHIND */
};

enum wire_open_flags {
    WIRE_OPEN_READ = 1,
    WIRE_OPEN_WRITE = 2,
    WIRE_OPEN_APPEND = 4,
    WIRE_OPEN_TRUNCATE = 8,
    WIRE_OPEN_EXCLUSIVE = 16,
    WIRE_OPEN_DIRECTORY = 32,
    WIRE_OPEN_DIRECT = 64,
    WIRE_OPEN_SYNC = 128,
    WIRE_OPEN_DSYNC = 256,
    WIRE_OPEN_KILL_PRIV = 512, /* with TRUNCATE: clear set-uid and set-gid */
    WIRE_OPEN_UNNAMED = 2048,  /* CREATE, with WRITE: the file gets its name by PLACE */
    WIRE_OPEN_NO_ATIME = 1024, /* reading leaves the access time alone, where the service may */
};

enum wire_attr_flags {
    /* Whatever changes this file by any other way than the asking client's own requests is
     * reported by CHANGES; for a directory, also what its names lead to. */
    WIRE_ATTR_COVERED = 1,
    /* Somebody beside the service may have this regular file open for writing. Never with COVERED:
     * stores to a mapping are not reported but at barriers. */
    WIRE_ATTR_WRITTEN = 2,
};

/* What happened to a file; see CHANGE. */
enum wire_change_kinds {
    WIRE_CHANGE_NAME = 1,    /* the name in this directory leads elsewhere, or nowhere */
    WIRE_CHANGE_CONTENT = 2, /* and attributes */
    WIRE_CHANGE_ATTR = 4,
    WIRE_CHANGE_ALL = 8, /* of no file in particular: anything may have changed */
};

enum wire_subscribe_flags {
    WIRE_SUBSCRIBE_OBSERVES = 1,
};

/* In PLACE.flags, beside RENAME_NOREPLACE. */
#define WIRE_PLACE_TIME 0x100

enum wire_make_flags {
    WIRE_MAKE_OWNER = 1, /* what is made belongs to uid and gid */
};

enum wire_write_flags {
    WIRE_WRITE_KILL_PRIV = 1, /* clear set-uid and set-gid, as write() by an ordinary user */
    WIRE_WRITE_APPEND = 2,    /* to the end of the file as it is then, whatever the offset */
    WIRE_WRITE_BEHIND = 4, /* not if the write, or new size, before it through this handle was not
                            * made whole: then this one fails in the same way */
};

enum wire_tree_flags {
    WIRE_TREE_ALONE = 1,   /* the directory itself, none below it */
    WIRE_TREE_DIGESTS = 2, /* listings by their digests */
};

enum wire_readfiles_flags {
    WIRE_READFILES_NO_ATIME = 1, /* as WIRE_OPEN_NO_ATIME: nobody has read them yet */
    WIRE_READFILES_ENDS = 2,     /* of files larger than WIRE_FILE_MAX too */
};

enum wire_file_flags {
    /* It is covered (WIRE_ATTR_COVERED), so nothing writes it now, and its last change is so long
     * ago that the next one will have another time: (ino, generation, size, mtime, ctime) stand for
     * this content for ever. */
    WIRE_FILE_SETTLED = 1,
    /* The data are the first WIRE_FILE_HEAD bytes and the last WIRE_FILE_TAIL. */
    WIRE_FILE_ENDS = 2,
};

/* A lock's type in LOCK_GET, LOCK_FOUND and LOCK_SET. */
enum wire_lock_type { WIRE_LOCK_NONE = 0, WIRE_LOCK_READ = 1, WIRE_LOCK_WRITE = 2 };

enum wire_lock_flags {
    WIRE_LOCK_WAIT = 1,
    WIRE_LOCK_FLOCK = 2,
};

enum wire_exec_flags {
    WIRE_EXEC_STDIN = 1, /* else standard input is /dev/null */
    WIRE_EXEC_MERGE = 2, /* standard error goes into stream 1, in order */
    WIRE_EXEC_PTY = 4,
    WIRE_EXEC_DETACH = 8,      /* nobody waits for it: it goes on without a client */
    WIRE_EXEC_KEEP = 16,       /* it goes on when its clients are gone */
    WIRE_EXEC_DURABLE = 32,    /* a crash of the machine forgets neither its ID nor its verdict */
    WIRE_EXEC_PATH = 64,       /* it sees its workspace at mount_path, if it can */
    WIRE_EXEC_PATH_ONLY = 128, /* and is not started if it cannot */
};

enum wire_attach_flags {
    WIRE_ATTACH_OUTPUT = 1,
    WIRE_ATTACH_INPUT = 2,
    WIRE_ATTACH_FOLLOW = 4, /* to the end */
    WIRE_ATTACH_HOLD = 8,   /* the command waits for this reader */
};

/* An offset in EXEC_ATTACH: where the stream's end is now. */
#define WIRE_ATTACH_NOW UINT64_MAX

enum wire_cancel_flags {
    WIRE_CANCEL_LEAVE = 1,
};

/* How a command ended. DESIGN: the verdict. Numbers are wire format. */
enum wire_verdict {
    WIRE_VERDICT_EXITED = 1,
    WIRE_VERDICT_SIGNALED = 2,
    WIRE_VERDICT_TIMED_OUT = 3,
    WIRE_VERDICT_OOM_KILLED = 4,
    WIRE_VERDICT_KILLED = 5,
    WIRE_VERDICT_NOT_STARTED = 6,
    WIRE_VERDICT_UNKNOWN = 7,
    WIRE_VERDICT_RUNNING = 8, /* it has not ended */
};

/* How the processes of a command were found and ended. Numbers are wire format. */
enum wire_means {
    WIRE_MEANS_NONE = 0, /* nothing was */
    WIRE_MEANS_CGROUP = 1,
    WIRE_MEANS_SUBREAPER = 2,
    WIRE_MEANS_TREE = 3, /* process group, session and descendants: what left them escapes */
};

/* Whether what a command did is seen wherever the workspace is mounted. Numbers are wire format. */
enum wire_coherence {
    WIRE_COHERENCE_UNKNOWN = 0, /* some client did not confirm it in time */
    WIRE_COHERENCE_SEEN = 1,
};

/* The step at which a command failed to start. Numbers are wire format. */
enum wire_exec_stage {
    WIRE_STAGE_NONE = 0,
    WIRE_STAGE_REQUEST = 1,   /* the request itself is not acceptable */
    WIRE_STAGE_WORKSPACE = 2, /* no such workspace */
    WIRE_STAGE_PIPES = 3,     /* descriptors for its streams */
    WIRE_STAGE_FORK = 4,
    WIRE_STAGE_SETUP = 5,   /* session, signals, limits, descriptors in the child */
    WIRE_STAGE_CONFINE = 6, /* namespaces, Landlock, seccomp, … */
    WIRE_STAGE_CWD = 7,     /* entering the working directory */
    WIRE_STAGE_EXECVE = 8,  /* the program itself */
    WIRE_STAGE_ATTEST = 9,  /* what holds it is not what was made, or the workspace is fenced */
};

struct wire_time {
    int64_t sec;
    uint32_t nsec;
};

/* On the wire in this order, WIRE_ATTR_SIZE bytes. ino and generation are the server's
 * identity of the file, stable while it exists; ino is what the mount shows as st_ino.
 * version: a number that differs whenever content may differ; 0 = not known. */
struct wire_attr {
    uint64_t ino;
    uint64_t generation;
    uint64_t version;
    uint64_t size;
    uint64_t blocks; /* of 512 bytes */
    uint32_t mode;
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev;
    uint32_t blksize;
    struct wire_time atime;
    struct wire_time mtime;
    struct wire_time ctime;
    uint64_t flags; /* WIRE_ATTR_… */
};

/* What a service of this version tells as the version of a file of this size, ctime and mtime. Who
 * is told another number keeps that. */
uint64_t wire_attr_version(const struct wire_attr *attr);

/* A list of byte strings, as on the wire; borrowed like struct bytes. count elements have
 * been checked to fill data exactly. */
struct wire_list {
    const uint8_t *data;
    uint32_t len;
    uint32_t count;
};

/* Steps through a list: *offset starts at 0; false at the end. */
bool wire_list_next(const struct wire_list *list, uint32_t *offset, struct bytes *ret);

/* Appends one element to a list under construction (a buffer that wire_list_of views). */
int wire_list_append(struct buffer *b, struct bytes element);
struct wire_list wire_list_of(const struct buffer *b, uint32_t count);

enum wire_type {
    WIRE_NONE = 0,
#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    WIRE_##NAME = number,
#define FIELD_U32(message, field)
#define FIELD_U64(message, field)
#define FIELD_TIME(message, field)
#define FIELD_ATTR(message, field)
#define FIELD_BYTES(message, field, min, max)
#define FIELD_LIST(message, field, max_count, max_size)
#define END(message)
#include "wire/messages.def"
};

/* struct wire_hello, struct wire_welcome, … */
#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    struct wire_##name {
#define FIELD_U32(message, field) uint32_t field;
#define FIELD_U64(message, field) uint64_t field;
#define FIELD_TIME(message, field) struct wire_time field;
#define FIELD_ATTR(message, field) struct wire_attr field;
#define FIELD_BYTES(message, field, min, max) struct bytes field;
#define FIELD_LIST(message, field, max_count, max_size) struct wire_list field;
#define END(message) \
    }                \
    ;
#include "wire/messages.def"

/* Any message: type says which member of the union holds it. */
struct wire_message {
    enum wire_type type;
    union {
#define MESSAGE(NAME, name, number, from, phase, class, effect, verb, owner, summary) \
    struct wire_##name name;
#define FIELD_U32(message, field)
#define FIELD_U64(message, field)
#define FIELD_TIME(message, field)
#define FIELD_ATTR(message, field)
#define FIELD_BYTES(message, field, min, max)
#define FIELD_LIST(message, field, max_count, max_size)
#define END(message)
#include "wire/messages.def"
    };
};

enum wire_from { WIRE_FROM_CLIENT = 1, WIRE_FROM_SERVER = 2, WIRE_FROM_EITHER = 3 };
enum wire_phase { WIRE_PHASE_HELLO, WIRE_PHASE_READY, WIRE_PHASE_ANY };
enum wire_class {
    WIRE_CLASS_REQUEST,
    WIRE_CLASS_REPLY,
    WIRE_CLASS_ITEM,
    WIRE_CLASS_CONTROL,
    WIRE_CLASS_NOTICE,
    WIRE_CLASS_RECORD,
};
enum wire_effect { WIRE_EFFECT_NONE, WIRE_EFFECT_READS, WIRE_EFFECT_WRITES };
enum wire_verb { WIRE_VERB_NONE, WIRE_VERB_READ, WIRE_VERB_WRITE, WIRE_VERB_EXEC, WIRE_VERB_ADMIN };
#define WIRE_VERB_COUNT (WIRE_VERB_ADMIN + 1)
enum wire_field_type {
    WIRE_FIELD_U32,
    WIRE_FIELD_U64,
    WIRE_FIELD_TIME,
    WIRE_FIELD_ATTR,
    WIRE_FIELD_BYTES,
    WIRE_FIELD_LIST,
};

struct wire_field {
    const char *name;
    enum wire_field_type type;
    uint32_t min;       /* BYTES: least length */
    uint32_t max;       /* BYTES: greatest length; LIST: greatest size in bytes */
    uint32_t max_count; /* LIST */
    size_t offset;      /* in struct wire_message */
};

struct wire_row {
    enum wire_type type;
    const char *name; /* as in the table: "LOOKUP" */
    enum wire_from from;
    enum wire_phase phase;
    enum wire_class class;
    enum wire_effect effect;
    enum wire_verb verb;
    enum wire_type owner; /* see messages.def; WIRE_NONE */
    uint32_t min_payload;
    uint32_t max_payload;
    const struct wire_field *fields;
    size_t field_count;
    const char *summary;
};

/* The row of a type, or NULL for a number that is not in the table. */
const struct wire_row *wire_row(uint32_t type);

/* The rows in table order: 0 <= i < wire_row_count(). */
const struct wire_row *wire_row_at(size_t i);
size_t wire_row_count(void);

/* True for messages that carry file content or output: FILES, and those with a BYTES field that may
 * hold WIRE_CHUNK_MAX or more. They are compressed on their own, all others in the stream. */
bool wire_row_is_bulk(const struct wire_row *row);

/* Appends m's payload (no header). -EINVAL when a field is out of the table's bounds, and
 * -ENOMEM; the buffer is then unchanged. */
int wire_encode(struct buffer *b, const struct wire_message *m);

/* Reads a payload of this type into *ret, whose views point into payload. -EBADMSG when
 * fields are short, over-long, out of bounds, or bytes trail; *ret is then unspecified. */
int wire_decode(enum wire_type type, struct bytes payload, struct wire_message *ret);

struct wire_header {
    uint32_t length;
    uint16_t type;
    uint16_t flags;
    uint64_t tag;
};
void wire_header_encode(uint8_t out[WIRE_HEADER_SIZE], const struct wire_header *h);
void wire_header_decode(const uint8_t in[WIRE_HEADER_SIZE], struct wire_header *ret);

/* "none", "read", "write", "exec", "admin". */
const char *wire_verb_name(enum wire_verb verb);

/* "exited", "not_started", …; "execve", "cwd", …; NULL for unknown numbers. */
const char *wire_verdict_name(uint32_t verdict);
const char *wire_stage_name(uint32_t stage);
/* "cgroup", …; "none". */
const char *wire_means_name(uint32_t means);

/* True when an ITEM or CONTROL belongs into calls of this request. */
bool wire_row_belongs(const struct wire_row *row, const struct wire_row *request);
