/* wherry.h: a client of the Wherry message queue over its native wire (docs/wire.md). C99, libc only; TLS by OpenSSL if
 * the library was built with WHERRY_TLS=1.
 *
 *     struct wherry *client;
 *     struct wherry_error error;
 *     struct wherry_message hello = {.payload = "hello", .payload_size = 5};
 *     if (wherry_connect(&client, "http://127.0.0.1:7070", NULL, 5000, &error) == WHERRY_OK) {
 *         wherry_publish(client, "jobs", &hello, 1, NULL, NULL, 5000, &error);   (on disk when this returns WHERRY_OK)
 *         wherry_close(client, 2000);
 *     }
 *
 * Rules that hold for all functions:
 *
 * - A connection is used by one thread at a time. Connections share nothing, the library has no global state, starts
 *   no thread, installs no signal handler and raises no SIGPIPE.
 * - A function returns WHERRY_OK (0) or one of the negative results below, and then fills the error, which may be NULL.
 * - `timeout_ms` is the longest time to wait: 0 does not wait, -1 waits for ever. WHERRY_TIMEOUT leaves the request
 *   under way: its answer can still be waited for.
 * - A struct of options that is all zeroes (`= {0}`) has the defaults, and so has NULL. Texts are UTF-8.
 * - Everything is bounded: requests under way, bytes to be written, and bytes that came and were not collected. At a
 *   bound a call returns WHERRY_FULL and has done nothing. Collect answers or deliveries, and call again.
 */

#ifndef WHERRY_H
#define WHERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WHERRY_VERSION "0.1.0"

enum {
    WHERRY_FRAME_BYTES_MAX = 32 << 20, /* of all messages of one publish, or the body of a call */
    WHERRY_ROWS_MAX = 1024,            /* messages of one publish */
    WHERRY_STREAMS_MAX = 256,          /* streams of one connection */
    WHERRY_HEADERS_MAX = 256           /* headers of one message */
};

/* ----------------------------------------------------------------------------------------------- results and errors */

enum {
    WHERRY_OK = 0,
    WHERRY_TIMEOUT = -1, /* the time is over */
    WHERRY_REFUSED = -2, /* the broker refused it, or an argument breaks a rule; the error names the field */
    WHERRY_FULL = -3,    /* a bound of this connection is reached */
    WHERRY_LEAVING = -4, /* the server has sent GOODBYE and accepts no new requests: settle, then wherry_reconnect */
    WHERRY_CLOSED = -5,  /* the connection is lost: wherry_reconnect. Requests under way may have been done */
    WHERRY_NO_MEMORY = -6
};

struct wherry_error {
    int result;       /* the result that came with this error */
    int status;       /* the HTTP status; 0 for an error of the client itself */
    uint32_t id;      /* the request or stream that it is about; 0 for none */
    char code[32];    /* for programs: codes of the broker ("invalid-input", "forbidden", "not-found", "stale-lease",
                         ...), and of the client: "timeout", "unavailable", "protocol", "moved", "no-memory" */
    char field[64];   /* the field that is wrong; empty if none is */
    char given[128];  /* what was given there */
    char allowed[256]; /* what is allowed; for "moved" the address that serves the topic */
    char text[512];   /* for people */
};

/* --------------------------------------------------------------------------------------------------------- messages */

struct wherry_text {
    const char *data; /* not ended by 0 when it comes from the library */
    size_t size;
};

struct wherry_header {
    struct wherry_text name, value;
};

/* Which fields of a message are there, beside its payload; the bits of the wire. */
enum {
    WHERRY_KEY = 0x01,
    WHERRY_HEADERS = 0x02,
    WHERRY_PRIORITY = 0x04,
    WHERRY_DUE = 0x08,
    WHERRY_EXPIRES = 0x10,
    WHERRY_ID = 0x20,
    WHERRY_ENVELOPE = 0x40
};

struct wherry_message {
    const void *payload;
    size_t payload_size;
    unsigned fields; /* which of the fields below are there, as WHERRY_KEY | WHERRY_PRIORITY */
    uint16_t priority;
    struct wherry_text key, id;
    const struct wherry_header *headers;
    size_t header_count;
    int64_t due_ms, expires_ms; /* Unix milliseconds */
    const void *envelope;
    size_t envelope_size;
};

/* A message that was pushed. Its memory is that of the library, until the next wherry_receive, wherry_reconnect or
 * wherry_close of this connection. A copy of the struct is enough to settle it later. */
struct wherry_delivery {
    uint32_t stream;
    uint32_t connection; /* number of the connect: a delivery of an earlier one is stale */
    uint64_t token;      /* of the lease */
    uint64_t offset;
    int64_t published_us; /* Unix microseconds */
    uint16_t partition;
    uint16_t attempt; /* 1 for the first */
    struct wherry_message message;
};

/* ------------------------------------------------------------------------------------------------------ connections */

struct wherry; /* one connection */

struct wherry_options {
    const char *key;         /* API key, such as wk_...; NULL for none */
    const char *name;        /* of this client, for people who look at the sessions of a node */
    uint32_t heartbeat_ms;   /* 1,000 to 600,000; 0 leaves it to the server. Call a function of the connection at
                                least as often, or the server closes it after twice that time */
    int reconnect;           /* 1: functions with a timeout connect again by themselves; 0: call wherry_reconnect */
    uint32_t backoff_first_ms, backoff_cap_ms; /* between attempts; 100 and 5,000 */
    uint32_t in_flight_max;  /* requests whose answers were not collected: 4,096; at most 1,048,576 */
    size_t out_bytes_max;    /* bytes to be written: 8 MiB; if none wait, one larger frame is taken */
    size_t held_bytes_max;   /* bytes of deliveries and answers that were not collected: 64 MiB, beyond it the
                                connection is not read */
    const char *ca_file;     /* https only: certificates to trust (PEM); NULL for those of the system */
    const char *cert_file, *key_file; /* https only: a certificate of the client, and its key (PEM) */
};

/* Connects. `url` is http://host:port, https://host:port (port 7070 unless it is given) or unix:///path. A name is
 * looked up by getaddrinfo(), which has no timeout. */
int wherry_connect(struct wherry **client, const char *url, const struct wherry_options *options, int timeout_ms,
                   struct wherry_error *error);

/* Closes the connection if it is open, as wherry_close does, and connects again: tries with a growing pause until one
 * try succeeds, the time is over, or the server refuses for a reason that stays, such as a wrong key. Streams are
 * subscribed again, with the credit that they began with. Requests without an answer get WHERRY_CLOSED. */
int wherry_reconnect(struct wherry *client, int timeout_ms, struct wherry_error *error);

/* Waits for answers under way, sends GOODBYE, waits until the server has closed, and frees the connection; with
 * timeout_ms 0 only closes, and messages that the client holds count as failed. `client` may be NULL. */
void wherry_close(struct wherry *client, int timeout_ms);

enum { WHERRY_STATE_CLOSED, WHERRY_STATE_OPEN, WHERRY_STATE_LEAVING };

int wherry_state(const struct wherry *client);
uint32_t wherry_in_flight(const struct wherry *client); /* requests without an answer yet */

/* For programs with a loop of their own: the descriptor (-1 while closed; another one after a reconnect), the events of
 * poll() to wait for, after how many milliseconds to call wherry_process at the latest, and what to call then: it
 * writes, reads and sends heartbeats without waiting. Then collect answers and deliveries with timeout_ms 0. */
int wherry_fd(const struct wherry *client);
short wherry_events(const struct wherry *client);
int wherry_due_ms(const struct wherry *client);
int wherry_process(struct wherry *client, struct wherry_error *error);

/* ---------------------------------------------------------------------------------------------------------- answers */

struct wherry_place {
    uint16_t partition;
    uint32_t messages; /* at consecutive offsets */
    uint64_t offset;   /* of the first */
};

enum { WHERRY_PUBLISHED = 1, WHERRY_SETTLED, WHERRY_RENEWED, WHERRY_CALLED };
enum { WHERRY_DURABLE = 0x01, WHERRY_REPEATED = 0x02, WHERRY_PLACED = 0x04, WHERRY_FLOW = 0x08 };

/* The answer to one request. Its memory is that of the library, until the next function of this connection that takes a
 * timeout. */
struct wherry_answer {
    uint32_t request;
    int kind;
    /* WHERRY_PUBLISHED: */
    uint16_t partition; /* of the first message */
    uint16_t flags;     /* WHERRY_DURABLE: on disk; WHERRY_REPEATED: this sequence was published before;
                           WHERRY_PLACED: there are places; WHERRY_FLOW: other nodes get them later */
    uint32_t messages;
    uint32_t dead;      /* how many of them, the last ones, are dead letters of a full topic */
    uint64_t offset;    /* of the first message; the others follow it unless there are places */
    const struct wherry_place *places;
    size_t place_count;
    /* WHERRY_CALLED: */
    int status;
    struct wherry_text head; /* JSON: status, headers */
    struct wherry_text body;
};

/* Waits for the answer to a request, or with request 0 for the next one that comes. Returns WHERRY_REFUSED or
 * WHERRY_CLOSED if that is the answer; error.id is the request then, and answer->request too. With WHERRY_TIMEOUT there
 * is no answer yet. A call with a status of 400 or more is WHERRY_REFUSED, and the answer is filled. */
int wherry_wait(struct wherry *client, uint32_t request, struct wherry_answer *answer, int timeout_ms,
                struct wherry_error *error);

/* Discards the answer to this request when it comes. If the request fails, that counts as a quiet failure. */
void wherry_forget(struct wherry *client, uint32_t request);

/* How many quiet publishes and forgotten requests have failed since the last call; the error is that of the last. */
uint64_t wherry_quiet_failures(struct wherry *client, struct wherry_error *error);

/* ---------------------------------------------------------------------------------------------------------- publish */

enum { WHERRY_AS_TOPIC, WHERRY_PERSISTENT, WHERRY_TRANSIENT };

struct wherry_publish_options {
    int persistence;      /* WHERRY_AS_TOPIC, WHERRY_PERSISTENT, WHERRY_TRANSIENT */
    int has_partition;    /* 1: all messages go to `partition` */
    uint16_t partition;
    const char *producer; /* with `sequence`: a publish that is sent again is stored once */
    uint64_t sequence;
    uint64_t fingerprint; /* of the content, from 1 on: another content under the same number is refused; 0: none */
    const char *callback; /* URL to which the broker posts the outcomes of the messages */
    int quiet;            /* 1: no confirm; the request is 0 */
};

/* Publishes 1 to 1,024 messages, all or none, and waits for the confirm. `answer` may be NULL. */
int wherry_publish(struct wherry *client, const char *topic, const struct wherry_message *messages, size_t count,
                   const struct wherry_publish_options *options, struct wherry_answer *answer, int timeout_ms,
                   struct wherry_error *error);

/* Begins the same without waiting, so that thousands are under way; the bytes are written by wherry_wait,
 * wherry_receive, wherry_process, or when many have gathered. Publishes to a topic are stored in their order. */
int wherry_publish_start(struct wherry *client, const char *topic, const struct wherry_message *messages, size_t count,
                         const struct wherry_publish_options *options, uint32_t *request, struct wherry_error *error);

/* The same with an Arrow IPC stream of `rows` messages, for many at once. */
int wherry_publish_arrow_start(struct wherry *client, const char *topic, const void *stream, size_t size, uint32_t rows,
                               const struct wherry_publish_options *options, uint32_t *request,
                               struct wherry_error *error);

/* ---------------------------------------------------------------------------------------------------------- consume */

struct wherry_subscribe_options {
    const char *consumer;     /* name of the consumer; NULL: the broker makes one */
    uint32_t credit;          /* messages that may be pushed at once */
    int refill;               /* 1: credit is granted again for messages as they are settled */
    uint64_t buffer_messages; /* most that the consumer holds unsettled; 0: as the subscription has it */
    uint64_t buffer_bytes;
    const char *create;       /* JSON object, such as "{}": create the subscription if it is missing */
};

struct wherry_stream {
    int is_open;        /* 0 until the broker has answered, and while the connection is closed */
    uint32_t lease_ms;  /* how long a lease lasts */
    int acks;           /* 0: messages are settled as they are handed over */
    const char *consumer; /* its name, until the stream ends */
};

/* Joins a subscription as a consumer: opens a stream. With WHERRY_TIMEOUT the stream is still opening. */
int wherry_subscribe(struct wherry *client, const char *topic, const char *subscription,
                     const struct wherry_subscribe_options *options, uint32_t *stream, int timeout_ms,
                     struct wherry_error *error);

int wherry_stream_info(const struct wherry *client, uint32_t stream, struct wherry_stream *info,
                       struct wherry_error *error);

/* Grants credit for so many more messages. */
int wherry_credit(struct wherry *client, uint32_t stream, uint32_t messages, struct wherry_error *error);

/* Waits for messages of a stream, or with stream 0 of any; fills at most `room` deliveries, all of one stream, and
 * returns how many (1 or more), or a negative result. WHERRY_REFUSED: the broker has ended the stream error.id. */
int wherry_receive(struct wherry *client, uint32_t stream, struct wherry_delivery *deliveries, size_t room,
                   int timeout_ms, struct wherry_error *error);

/* Ends a stream; its messages that the client holds wait again, and no attempt is counted. */
int wherry_cancel(struct wherry *client, uint32_t stream, int timeout_ms, struct wherry_error *error);

/* As the offset of a delivery: settle all of its lease. It counts as one message for refill. */
#define WHERRY_WHOLE_LEASE UINT64_MAX

enum { WHERRY_ACK = 1, WHERRY_NACK, WHERRY_DEAD_LETTER, WHERRY_RELEASE };

struct wherry_settle_options {
    int64_t delay_ms;   /* nack: until the message comes again; 0: by the retry policy, -1: at once */
    const char *error;  /* nack and dead letter: what went wrong */
    const char *reason; /* dead letter: "rejected" unless it is given */
};

/* Settles deliveries of one stream, all or none; on disk when it returns WHERRY_OK. The error code "stale-lease" means
 * that a lease had ended. */
int wherry_ack(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, int timeout_ms,
               struct wherry_error *error);
int wherry_nack(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, int64_t delay_ms,
                const char *why, int timeout_ms, struct wherry_error *error);
int wherry_dead_letter(struct wherry *client, const struct wherry_delivery *deliveries, size_t count,
                       const char *reason, const char *why, int timeout_ms, struct wherry_error *error);
int wherry_release(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, int timeout_ms,
                   struct wherry_error *error);
int wherry_settle_start(struct wherry *client, int verb, const struct wherry_delivery *deliveries, size_t count,
                        const struct wherry_settle_options *options, uint32_t *request, struct wherry_error *error);

/* Prolongs the leases of deliveries, by `lease_ms` from now or with 0 by the time of the subscription. */
int wherry_renew(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, uint32_t lease_ms,
                 int timeout_ms, struct wherry_error *error);
int wherry_renew_start(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, uint32_t lease_ms,
                       uint32_t *request, struct wherry_error *error);

/* ------------------------------------------------------------------------------------------------------------- call */

/* Makes a call of the HTTP interface (docs/http.md): topics, subscriptions, keys, browse, stats... A body is JSON.
 * `answer` may be NULL. */
int wherry_call(struct wherry *client, const char *method, const char *path, const char *body,
                struct wherry_answer *answer, int timeout_ms, struct wherry_error *error);

/* Begins a call with headers (names in lower case) and a body of any type. */
int wherry_call_start(struct wherry *client, const char *method, const char *path, const struct wherry_header *headers,
                      size_t header_count, const void *body, size_t body_size, uint32_t *request,
                      struct wherry_error *error);

/* Cancels a call under way. The call is answered, with status 499 if it was not carried out. */
int wherry_call_cancel(struct wherry *client, uint32_t request, struct wherry_error *error);

#ifdef __cplusplus
}
#endif

#endif
