/* Tells whoever started this process how far it is, by the socket that NOTIFY_SOCKET names
 * (sd_notify(3)). */
#pragma once

/* A descriptor; -1: nobody wants to know. The variable is gone afterwards: what is started here
 * does not speak for this process. */
int notify_open(void);

/* state: "READY=1", "STOPPING=1". A manager that does not listen is none of our business. */
void notify_send(int fd, const char *state);
