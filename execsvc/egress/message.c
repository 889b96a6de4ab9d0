#include "egress/message.h"

static int on_head(http_parser *p)
{
    const struct message *m = p->data;
    return m->no_body ? 1 : 0;
}

static int on_end(http_parser *p)
{
    struct message *m = p->data;
    if (p->type == HTTP_RESPONSE && p->status_code / 100 == 1)
        return 0;
    m->done = true;
    /* The parser stops right behind the message. */
    http_parser_pause(p, 1);
    return 0;
}

static const http_parser_settings callbacks = {
    .on_headers_complete = on_head,
    .on_message_complete = on_end,
};

static void begin(struct message *m, enum http_parser_type type, bool no_body)
{
    *m = (struct message){.no_body = no_body};
    http_parser_init(&m->parser, type);
    m->parser.data = m;
}

void message_begin_request(struct message *m)
{
    begin(m, HTTP_REQUEST, false);
}

void message_begin_response(struct message *m, bool no_body)
{
    begin(m, HTTP_RESPONSE, no_body);
}

size_t message_feed(struct message *m, const void *data, size_t len)
{
    if (m->done || m->broken || len == 0)
        return 0;
    m->parser.data = m; /* it may have been moved since */
    size_t used = http_parser_execute(&m->parser, &callbacks, data, len);
    /* An upgrade ends what is HTTP; nobody has asked for one. */
    m->broken = !m->done && (HTTP_PARSER_ERRNO(&m->parser) != HPE_OK || m->parser.upgrade);
    return used <= len ? used : len;
}
