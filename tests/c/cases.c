/* The cases that every client must pass, in C, against a real node: `cases NAME URL [ARGUMENT]`. tests/c/test_cases.py
 * starts the node, runs each case under sanitizers, and some under valgrind. A case that fails prints its line and ends
 * with 1. */

#define _POSIX_C_SOURCE 200809L

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wherry.h"

enum { SOON_MS = 60000, LITTLE_MS = 300 };

static struct wherry_error error;
static const char *url, *name, *argument;
static char topic_path[300];

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n  last error: %d %s, field \"%s\": %s\n", __FILE__, __LINE__, #condition,      \
                    error.result, error.code, error.field, error.text);                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define OK(call) CHECK((call) == WHERRY_OK)

static struct wherry *connected(const struct wherry_options *options) {
    struct wherry *client;
    OK(wherry_connect(&client, url, options, SOON_MS, &error));
    return client;
}

/* Connects, and creates the topic of this case. */
static struct wherry *with_topic(const char *terms) {
    struct wherry *client = connected(NULL);
    OK(wherry_call(client, "PUT", topic_path, terms, NULL, SOON_MS, &error));
    return client;
}

static struct wherry_message message_of(const char *payload) {
    struct wherry_message message = {0};
    message.payload = payload;
    message.payload_size = strlen(payload);
    return message;
}

static void publish(struct wherry *client, const char *payload) {
    struct wherry_message message = message_of(payload);
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
}

static void publish_many(struct wherry *client, int count) {
    char payload[24];
    int each;
    for (each = 0; each < count; each++) {
        snprintf(payload, sizeof payload, "%d", each);
        publish(client, payload);
    }
}

static uint32_t subscribed(struct wherry *client, const char *subscription, uint32_t credit, int refill,
                           const char *create) {
    struct wherry_subscribe_options options = {0};
    uint32_t stream;
    options.credit = credit;
    options.refill = refill;
    options.create = create;
    OK(wherry_subscribe(client, name, subscription, &options, &stream, SOON_MS, &error));
    return stream;
}

static struct wherry_delivery received(struct wherry *client, uint32_t stream) {
    struct wherry_delivery delivery;
    CHECK(wherry_receive(client, stream, &delivery, 1, SOON_MS, &error) == 1);
    return delivery;
}

static void nothing_comes(struct wherry *client, uint32_t stream, int timeout_ms) {
    struct wherry_delivery delivery;
    CHECK(wherry_receive(client, stream, &delivery, 1, timeout_ms, &error) == WHERRY_TIMEOUT);
    CHECK(strcmp(error.code, "timeout") == 0);
}

static int is_payload(const struct wherry_delivery *delivery, const char *text) {
    return delivery->message.payload_size == strlen(text) &&
           memcmp(delivery->message.payload, text, strlen(text)) == 0;
}

static int is_text(struct wherry_text text, const char *wanted) {
    return text.size == strlen(wanted) && memcmp(text.data, wanted, text.size) == 0;
}

/* Whether the body of an answer has a text somewhere. */
static int has(const struct wherry_answer *answer, const char *text) {
    size_t at, size = strlen(text);
    for (at = 0; at + size <= answer->body.size; at++)
        if (memcmp(answer->body.data + at, text, size) == 0) return 1;
    return 0;
}

static void check_call(struct wherry *client, const char *rest, const char *text) {
    char path[400];
    struct wherry_answer answer;
    snprintf(path, sizeof path, "%s%s", topic_path, rest);
    OK(wherry_call(client, "GET", path, NULL, &answer, SOON_MS, &error));
    if (!has(&answer, text)) fprintf(stderr, "%.*s\n", (int)answer.body.size, answer.body.data);
    CHECK(answer.status == 200 && has(&answer, text));
}

static void is_refused(int result, const char *code, const char *field) {
    CHECK(result == WHERRY_REFUSED && error.result == WHERRY_REFUSED);
    CHECK(strcmp(error.code, code) == 0);
    CHECK(strcmp(error.field, field) == 0);
    CHECK(error.text[0] != 0);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void pause_ms(int milliseconds) { poll(NULL, 0, milliseconds); }

/* ---------------------------------------------------------------------------------------------------------- publish */

static void flow_is_answered(void) {
    struct wherry *client = with_topic("{\"mesh\": \"flow\"}");
    struct wherry_message message = message_of("x");
    struct wherry_publish_options options = {0};
    struct wherry_answer answer;
    OK(wherry_publish(client, name, &message, 1, NULL, &answer, SOON_MS, &error));
    CHECK(answer.kind == WHERRY_PUBLISHED && answer.flags == (WHERRY_DURABLE | WHERRY_FLOW));
    options.persistence = WHERRY_TRANSIENT;
    OK(wherry_publish(client, name, &message, 1, &options, &answer, SOON_MS, &error));
    CHECK(answer.flags == WHERRY_FLOW);
    options.producer = "p";
    OK(wherry_publish(client, name, &message, 1, &options, &answer, SOON_MS, &error));
    OK(wherry_publish(client, name, &message, 1, &options, &answer, SOON_MS, &error));
    CHECK(answer.flags == (WHERRY_FLOW | WHERRY_REPEATED) && answer.offset == 2);
    wherry_close(client, SOON_MS);
}

static void publish_and_confirm(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_message many[10];
    struct wherry_publish_options options = {0};
    struct wherry_answer answer;
    int each;
    for (each = 0; each < 10; each++) many[each] = message_of("x");
    OK(wherry_publish(client, name, many, 1, NULL, &answer, SOON_MS, &error));
    CHECK(answer.kind == WHERRY_PUBLISHED && answer.flags == WHERRY_DURABLE);
    CHECK(answer.partition == 0 && answer.offset == 0 && answer.messages == 1 && answer.dead == 0);
    OK(wherry_publish(client, name, many, 10, NULL, &answer, SOON_MS, &error));
    CHECK(answer.offset == 1 && answer.messages == 10 && answer.place_count == 0);
    options.persistence = WHERRY_TRANSIENT;
    OK(wherry_publish(client, name, many, 1, &options, &answer, SOON_MS, &error));
    CHECK((answer.flags & WHERRY_DURABLE) == 0);
    options.persistence = WHERRY_AS_TOPIC;
    options.producer = "p";
    options.sequence = 7;
    options.fingerprint = 4;
    OK(wherry_publish(client, name, many, 2, &options, &answer, SOON_MS, &error));
    {
        uint64_t first = answer.offset;
        OK(wherry_publish(client, name, many, 2, &options, &answer, SOON_MS, &error));
        CHECK((answer.flags & WHERRY_REPEATED) && answer.offset == first);
    }
    is_refused(wherry_publish(client, "none", many, 1, NULL, NULL, SOON_MS, &error), "not-found", "");
    CHECK(error.status == 404 && error.id != 0);
    publish(client, "the connection continues");
    wherry_close(client, SOON_MS);
}

static void refused_with_the_field(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_message message = message_of("x"), many[1025];
    struct wherry_publish_options options = {0};
    struct wherry_options bad = {0};
    struct wherry_header headers[257];
    struct wherry *other;
    uint32_t stream;
    struct wherry_subscribe_options terms = {0};
    memset(many, 0, sizeof many);
    memset(headers, 0, sizeof headers);
    is_refused(wherry_publish(client, name, many, 1025, NULL, NULL, SOON_MS, &error), "invalid-input", "count");
    is_refused(wherry_publish(client, name, many, 0, NULL, NULL, SOON_MS, &error), "invalid-input", "count");
    options.has_partition = 1;
    options.partition = 5;
    is_refused(wherry_publish(client, name, &message, 1, &options, NULL, SOON_MS, &error), "invalid-input",
               "partition");
    CHECK(error.given[0] != 0 && error.allowed[0] != 0);
    options.has_partition = 0;
    options.sequence = 3;
    is_refused(wherry_publish(client, name, &message, 1, &options, NULL, SOON_MS, &error), "invalid-input", "sequence");
    options.sequence = 0;
    options.persistence = 9;
    is_refused(wherry_publish(client, name, &message, 1, &options, NULL, SOON_MS, &error), "invalid-input",
               "persistence");
    message.fields = 0x80;
    is_refused(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error), "invalid-input", "fields");
    message.fields = WHERRY_KEY;
    message.key.data = "\xff";
    message.key.size = 1;
    is_refused(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error), "invalid-input", "key");
    message.fields = WHERRY_HEADERS;
    message.headers = headers;
    message.header_count = 257;
    is_refused(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error), "invalid-input", "headers");
    message.fields = 0;
    message.payload_size = (size_t)WHERRY_FRAME_BYTES_MAX + 1;
    is_refused(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error), "invalid-input", "payload");
    is_refused(wherry_call(client, "PUT", topic_path, "{\"order\": \"sideways\"}", NULL, SOON_MS, &error),
               "invalid-input", "order");
    terms.create = "{\"lease_ms\": -1}";
    is_refused(wherry_subscribe(client, name, "w", &terms, &stream, SOON_MS, &error), "invalid-input", "lease_ms");
    terms.create = "[";
    is_refused(wherry_subscribe(client, name, "w", &terms, &stream, SOON_MS, &error), "invalid-input", "create");
    terms.create = NULL;
    is_refused(wherry_subscribe(client, name, "none", &terms, &stream, SOON_MS, &error), "not-found", "");
    is_refused(wherry_credit(client, 77, 1, &error), "invalid-input", "stream");
    is_refused(wherry_wait(client, 4711, NULL, 0, &error), "invalid-input", "request");
    wherry_close(client, SOON_MS);
    is_refused(wherry_connect(&other, "ftp://x", NULL, 0, &error), "invalid-input", "url");
    is_refused(wherry_connect(&other, "http://h:99999", NULL, 0, &error), "invalid-input", "url");
    is_refused(wherry_connect(&other, "http://h:1/path", NULL, 0, &error), "invalid-input", "url");
    bad.heartbeat_ms = 5;
    is_refused(wherry_connect(&other, url, &bad, 0, &error), "invalid-input", "heartbeat_ms");
    bad.heartbeat_ms = 0;
    bad.key = "a key";
    is_refused(wherry_connect(&other, url, &bad, 0, &error), "invalid-input", "key");
    CHECK(other == NULL && strstr(error.text, "a key") == NULL);
}

static void many_under_way(void) {
    enum { COUNT = 5000 };
    struct wherry_options options = {0};
    struct wherry *client;
    struct wherry_message rows[3];
    struct wherry_answer answer;
    static uint32_t requests[COUNT];
    uint64_t offset = 0;
    int each, result;
    wherry_close(with_topic("{\"payload_bytes_max\": 2000000}"), SOON_MS);
    options.in_flight_max = 8192;
    client = connected(&options);
    for (each = 0; each < 3; each++) rows[each] = message_of("0123456789");
    for (each = 0; each < COUNT; each++)
        OK(wherry_publish_start(client, name, rows, (size_t)(1 + each % 3), NULL, requests + each, &error));
    CHECK(wherry_in_flight(client) > 0);
    for (each = 0; each < COUNT; each++) {
        OK(wherry_wait(client, requests[each], &answer, SOON_MS, &error));
        CHECK(answer.request == requests[each] && answer.offset == offset);
        CHECK(answer.messages == (uint32_t)(1 + each % 3));
        offset += answer.messages;
    }
    CHECK(wherry_in_flight(client) == 0);
    CHECK(wherry_wait(client, 0, &answer, SOON_MS, &error) == WHERRY_TIMEOUT); /* at once: none is under way */
    wherry_close(client, SOON_MS);

    options.in_flight_max = 64; /* at the bound: FULL, and after one answer there is room for one more */
    client = connected(&options);
    for (each = 0; each < 64; each++) OK(wherry_publish_start(client, name, rows, 1, NULL, requests, &error));
    CHECK(wherry_publish_start(client, name, rows, 1, NULL, requests, &error) == WHERRY_FULL);
    CHECK(strcmp(error.field, "in_flight_max") == 0 && strcmp(error.code, "limit-reached") == 0);
    for (each = 0; each < 1000; each++) {
        OK(wherry_wait(client, 0, &answer, SOON_MS, &error));
        OK(wherry_publish_start(client, name, rows, 1, NULL, requests, &error));
    }
    for (each = 0; each < 64; each++) OK(wherry_wait(client, 0, NULL, SOON_MS, &error));
    wherry_close(client, SOON_MS);

    {   /* a call that waits finds room behind whatever is to be written, and does not wait for anything else */
        struct wherry_message large = {0};
        double began;
        large.payload_size = 900000;
        large.payload = calloc(1, large.payload_size);
        CHECK(large.payload != NULL);
        options.out_bytes_max = 1 << 20;
        client = connected(&options);
        began = seconds();
        for (each = 0; each < 5; each++) {
            wherry_publish_start(client, name, &large, 1, NULL, requests, &error);
            OK(wherry_publish(client, name, &large, 1, NULL, NULL, SOON_MS, &error));
        }
        CHECK(seconds() - began < 10);
        free((void *)(uintptr_t)large.payload);
        wherry_close(client, SOON_MS);
    }
    options.out_bytes_max = 1000; /* bytes that wait to be written are bounded too */
    client = connected(&options);
    for (each = 0; (result = wherry_publish_start(client, name, rows, 3, NULL, requests, &error)) == WHERRY_OK;) each++;
    CHECK(result == WHERRY_FULL && strcmp(error.field, "out_bytes_max") == 0 && each > 3 && each < 40);
    while (each-- > 0) OK(wherry_wait(client, 0, NULL, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

static void quiet_and_forgotten(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_message message = message_of("x");
    struct wherry_publish_options quiet = {0};
    uint32_t request = 9;
    quiet.quiet = 1;
    OK(wherry_publish_start(client, name, &message, 1, &quiet, &request, &error));
    CHECK(request == 0);
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    CHECK(wherry_quiet_failures(client, &error) == 0);
    check_call(client, "", "\"messages\":2");
    OK(wherry_publish_start(client, "none", &message, 1, &quiet, &request, &error));
    OK(wherry_publish_start(client, "none", &message, 1, NULL, &request, &error));
    wherry_forget(client, request);
    OK(wherry_publish_start(client, name, &message, 1, NULL, &request, &error));
    wherry_forget(client, request);
    is_refused(wherry_wait(client, request, NULL, SOON_MS, &error), "invalid-input", "request");
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    OK(wherry_call(client, "GET", topic_path, NULL, NULL, SOON_MS, &error));
    CHECK(wherry_quiet_failures(client, &error) == 2 && strcmp(error.code, "not-found") == 0);
    CHECK(wherry_quiet_failures(client, NULL) == 0);
    wherry_close(client, SOON_MS);
}

static void an_arrow_stream(void) { /* argument: the path of a file with an Arrow IPC stream of 300 messages */
    struct wherry *client = with_topic("{}");
    struct wherry_answer answer;
    static char data[1 << 20];
    FILE *file = fopen(argument, "rb");
    uint32_t request;
    size_t size;
    CHECK(file != NULL);
    size = fread(data, 1, sizeof data, file);
    fclose(file);
    OK(wherry_publish_arrow_start(client, name, data, size, 300, NULL, &request, &error));
    OK(wherry_wait(client, request, &answer, SOON_MS, &error));
    CHECK(answer.messages == 300 && answer.offset == 0);
    is_refused(wherry_publish_arrow_start(client, name, data, 0, 1, NULL, &request, &error), "invalid-input", "stream");
    wherry_close(client, SOON_MS);
}

static void partitions_and_places(void) {
    struct wherry *client = with_topic("{\"partitions\": 4}");
    struct wherry_message rows[16];
    struct wherry_answer answer;
    char keys[16][8];
    uint32_t total = 0;
    size_t each;
    for (each = 0; each < 16; each++) {
        rows[each] = message_of("x");
        rows[each].fields = WHERRY_KEY;
        snprintf(keys[each], sizeof keys[each], "k%d", (int)each);
        rows[each].key.data = keys[each];
        rows[each].key.size = strlen(keys[each]);
    }
    OK(wherry_publish(client, name, rows, 16, NULL, &answer, SOON_MS, &error));
    CHECK((answer.flags & WHERRY_PLACED) && answer.place_count > 1);
    for (each = 0; each < answer.place_count; each++) total += answer.places[each].messages;
    CHECK(total == 16 && answer.places[0].offset == answer.offset && answer.places[0].partition == answer.partition);
    wherry_close(client, SOON_MS);
}

/* ---------------------------------------------------------------------------------------------------------- consume */

static void push_and_ack(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery deliveries[20], copy;
    struct wherry_stream info;
    uint32_t stream = subscribed(client, "w", 100, 0, "{}");
    char payload[24];
    int each, got = 0;
    OK(wherry_stream_info(client, stream, &info, &error));
    CHECK(info.is_open && info.acks && info.lease_ms > 0 && info.consumer[0] != 0);
    publish_many(client, 20);
    while (got < 20) {
        int some = wherry_receive(client, stream, deliveries + got, (size_t)(20 - got), SOON_MS, &error);
        CHECK(some > 0);
        for (each = got; each < got + some; each++) {
            snprintf(payload, sizeof payload, "%d", each);
            CHECK(is_payload(deliveries + each, payload) && deliveries[each].offset == (uint64_t)each);
            CHECK(deliveries[each].attempt == 1 && deliveries[each].stream == stream);
            CHECK(deliveries[each].published_us > 0);
        }
        got += some;
    }
    OK(wherry_ack(client, deliveries, 19, SOON_MS, &error));
    copy = deliveries[19]; /* a copy is enough to settle */
    OK(wherry_ack(client, &copy, 1, SOON_MS, &error));
    check_call(client, "/subscriptions/w", "\"lag\":0");
    is_refused(wherry_ack(client, &copy, 1, SOON_MS, &error), "stale-lease", "");
    OK(wherry_cancel(client, stream, SOON_MS, &error));
    is_refused(wherry_cancel(client, stream, SOON_MS, &error), "invalid-input", "stream");
    stream = subscribed(client, "w", 100, 0, NULL);
    nothing_comes(client, stream, LITTLE_MS);
    wherry_close(client, SOON_MS);
}

static void every_field(void) {
    struct wherry *client = with_topic("{\"order\": \"priority\"}");
    struct wherry_header headers[2] = {{{"a", 1}, {"1", 1}}, {{"\xc3\xbc", 2}, {"", 0}}};
    struct wherry_message message = message_of("body");
    struct wherry_delivery back;
    uint32_t stream = subscribed(client, "w", 10, 0, "{}");
    message.fields = WHERRY_KEY | WHERRY_HEADERS | WHERRY_PRIORITY | WHERRY_EXPIRES | WHERRY_ID;
    message.key.data = "k1";
    message.key.size = 2;
    message.headers = headers;
    message.header_count = 2;
    message.priority = 7;
    message.expires_ms = ((int64_t)time(NULL) + 600) * 1000;
    message.id.data = "id-1";
    message.id.size = 4;
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    back = received(client, stream);
    CHECK(back.message.fields == message.fields && is_payload(&back, "body"));
    CHECK(is_text(back.message.key, "k1") && is_text(back.message.id, "id-1") && back.message.priority == 7);
    CHECK(back.message.expires_ms == message.expires_ms && back.message.header_count == 2);
    CHECK(is_text(back.message.headers[0].name, "a") && is_text(back.message.headers[0].value, "1"));
    CHECK(is_text(back.message.headers[1].name, "\xc3\xbc") && is_text(back.message.headers[1].value, ""));
    is_refused(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error), "duplicate-id", "");
    OK(wherry_ack(client, &back, 1, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

static void nack_and_retry(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    uint32_t stream = subscribed(client, "w", 100, 0, "{}");
    double began;
    publish(client, "again");
    delivery = received(client, stream);
    CHECK(delivery.attempt == 1);
    OK(wherry_nack(client, &delivery, 1, -1, "not now", SOON_MS, &error));
    delivery = received(client, stream);
    CHECK(delivery.attempt == 2 && is_payload(&delivery, "again"));
    began = seconds();
    OK(wherry_nack(client, &delivery, 1, 400, "a \"quoted\"\nline", SOON_MS, &error));
    delivery = received(client, stream);
    CHECK(delivery.attempt == 3 && seconds() - began > 0.35);
    OK(wherry_release(client, &delivery, 1, SOON_MS, &error));
    delivery = received(client, stream);
    CHECK(delivery.attempt == 3); /* a release counts no attempt */
    OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

static void dead_letters(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    uint32_t stream = subscribed(client, "w", 100, 0, "{}");
    publish(client, "bad");
    delivery = received(client, stream);
    OK(wherry_dead_letter(client, &delivery, 1, "unreadable", "no such \"format\"", SOON_MS, &error));
    check_call(client, "/dead", "unreadable");
    nothing_comes(client, stream, LITTLE_MS);
    wherry_close(client, SOON_MS);
}

static void renewed_leases(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    uint32_t stream = subscribed(client, "w", 1, 0, "{\"lease_ms\": 600}");
    int each;
    publish(client, "slow");
    delivery = received(client, stream);
    for (each = 0; each < 6; each++) {
        pause_ms(250);
        OK(wherry_renew(client, &delivery, 1, each % 2 == 0 ? 0 : 1000, SOON_MS, &error));
    }
    OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    publish(client, "too slow");
    OK(wherry_credit(client, stream, 1, &error));
    delivery = received(client, stream);
    pause_ms(1200);
    is_refused(wherry_renew(client, &delivery, 1, 0, SOON_MS, &error), "stale-lease", "");
    is_refused(wherry_ack(client, &delivery, 1, SOON_MS, &error), "stale-lease", "");
    wherry_close(client, SOON_MS);
}

static void credit_is_honoured(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery deliveries[40];
    uint32_t stream;
    int each;
    publish_many(client, 40);
    stream = subscribed(client, "w", 5, 0, "{\"start\": \"earliest\"}");
    for (each = 0; each < 5; each++) deliveries[each] = received(client, stream);
    nothing_comes(client, stream, LITTLE_MS);
    OK(wherry_credit(client, stream, 3, &error));
    for (; each < 8; each++) deliveries[each] = received(client, stream);
    OK(wherry_ack(client, deliveries, 8, SOON_MS, &error));
    nothing_comes(client, stream, LITTLE_MS);
    is_refused(wherry_credit(client, stream, 0, &error), "invalid-input", "messages");
    OK(wherry_cancel(client, stream, SOON_MS, &error));
    stream = subscribed(client, "w", 5, 1, NULL); /* granted again as messages are settled */
    for (; each < 40; each++) {
        deliveries[each] = received(client, stream);
        OK(wherry_ack(client, deliveries + each, 1, SOON_MS, &error));
    }
    nothing_comes(client, stream, LITTLE_MS);
    wherry_close(client, SOON_MS);
}

static void released_on_goodbye(void) {
    struct wherry *client = with_topic("{}");
    uint32_t stream = subscribed(client, "w", 10, 0, "{\"retry\": {\"first_ms\": 1, \"cap_ms\": 1}}");
    struct wherry_delivery delivery;
    publish(client, "held");
    received(client, stream);
    wherry_close(client, SOON_MS); /* leaves in order: no attempt is counted */
    client = connected(NULL);
    stream = subscribed(client, "w", 10, 0, NULL);
    delivery = received(client, stream);
    CHECK(delivery.attempt == 1);
    wherry_close(client, 0); /* just closes: the attempt has failed */
    client = connected(NULL);
    stream = subscribed(client, "w", 10, 0, NULL);
    delivery = received(client, stream);
    CHECK(delivery.attempt == 2);
    OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

static void without_acks(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    struct wherry_stream info;
    uint32_t stream = subscribed(client, "w", 2, 1, "{\"acks\": false}");
    int each;
    OK(wherry_stream_info(client, stream, &info, &error));
    CHECK(!info.acks);
    publish_many(client, 30);
    for (each = 0; each < 30; each++) {
        delivery = received(client, stream);
        CHECK(delivery.offset == (uint64_t)each);
    }
    wherry_close(client, SOON_MS);
}

static void a_large_message(void) {
    enum { SIZE = 20 << 20 };
    struct wherry *client = with_topic("{\"payload_bytes_max\": 25165824}");
    struct wherry_message message = {0};
    struct wherry_delivery delivery;
    uint32_t stream = subscribed(client, "w", 10, 0, "{}");
    char *payload = malloc(SIZE);
    int each;
    CHECK(payload != NULL);
    for (each = 0; each < SIZE; each++) payload[each] = (char)(each * 31 >> 3);
    message.payload = payload;
    message.payload_size = SIZE;
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    publish(client, "small");
    delivery = received(client, stream);
    CHECK(delivery.message.payload_size == SIZE && memcmp(delivery.message.payload, payload, SIZE) == 0);
    OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    delivery = received(client, stream);
    CHECK(is_payload(&delivery, "small"));
    message.payload_size = (size_t)WHERRY_FRAME_BYTES_MAX - 8;
    is_refused(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error), "invalid-input", "length");
    free(payload);
    wherry_close(client, SOON_MS);
}

static void many_streams(void) {
    enum { STREAMS = 100, MESSAGES = 5 };
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    static int counts[STREAMS + 300];
    uint32_t first = 0, stream;
    char subscription[16];
    int each;
    for (each = 0; each < STREAMS; each++) {
        snprintf(subscription, sizeof subscription, "s%d", each);
        stream = subscribed(client, subscription, 2, 1, "{}");
        if (first == 0) first = stream;
        CHECK(stream == first + (uint32_t)each);
    }
    publish_many(client, MESSAGES);
    for (each = 0; each < STREAMS * MESSAGES; each++) {
        delivery = received(client, 0);
        CHECK(delivery.offset == (uint64_t)counts[delivery.stream - first]++); /* each stream in its own order */
        OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    }
    for (each = 0; each < STREAMS; each++) CHECK(counts[each] == MESSAGES);
    for (each = 0; each < STREAMS; each++) OK(wherry_cancel(client, first + (uint32_t)each, SOON_MS, &error));
    is_refused(wherry_receive(client, 0, &delivery, 1, 0, &error), "invalid-input", "stream");
    for (each = 0; each < WHERRY_STREAMS_MAX; each++) subscribed(client, "s0", 0, 0, NULL);
    CHECK(wherry_subscribe(client, name, "s0", NULL, &stream, SOON_MS, &error) == WHERRY_FULL);
    wherry_close(client, SOON_MS);
}

static void a_stream_that_the_broker_ends(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    uint32_t stream = subscribed(client, "w", 10, 0, "{}");
    char path[400];
    snprintf(path, sizeof path, "%s/subscriptions/w", topic_path);
    publish(client, "gone with its subscription");
    received(client, stream);
    OK(wherry_call(client, "DELETE", path, NULL, NULL, SOON_MS, &error));
    CHECK(wherry_receive(client, 0, &delivery, 1, SOON_MS, &error) == WHERRY_REFUSED);
    CHECK(error.id == stream && error.code[0] != 0);
    is_refused(wherry_receive(client, stream, &delivery, 1, SOON_MS, &error), "invalid-input", "stream");
    OK(wherry_call(client, "GET", topic_path, NULL, NULL, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

static void held_bytes_are_bounded(void) {
    struct wherry_options options = {0};
    struct wherry *client = with_topic("{}");
    struct wherry_delivery delivery;
    struct wherry_message message = {0};
    static char payload[50000];
    uint32_t stream;
    int each, result;
    message.payload = payload;
    message.payload_size = sizeof payload;
    for (each = 0; each < 100; each++) OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    wherry_close(client, SOON_MS);
    options.held_bytes_max = 100000;
    client = connected(&options);
    stream = subscribed(client, "w", 1000, 0, "{\"start\": \"earliest\"}");
    pause_ms(LITTLE_MS);
    /* Calls wait for their answers behind messages that are not taken: that is reported, and nothing more is read. */
    for (each = 0; (result = wherry_call(client, "GET", topic_path, NULL, NULL, SOON_MS, &error)) == WHERRY_OK;)
        CHECK(++each < 100);
    CHECK(result == WHERRY_FULL && strcmp(error.field, "held_bytes_max") == 0);
    for (each = 0; each < 100; each++) {
        delivery = received(client, stream);
        CHECK(delivery.message.payload_size == sizeof payload);
    }
    OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    OK(wherry_call(client, "GET", topic_path, NULL, NULL, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

/* ----------------------------------------------------------------------------------------------- calls and the loop */

static void calls(void) {
    struct wherry *client = with_topic("{\"partitions\": 2}");
    struct wherry_answer answer;
    struct wherry_header plain = {{"content-type", 12}, {"text/plain", 10}};
    char path[400];
    uint32_t request, other;
    check_call(client, "", "\"partitions\":2");
    CHECK(wherry_call(client, "GET", "/v1/topics/none", NULL, &answer, SOON_MS, &error) == WHERRY_REFUSED);
    CHECK(answer.status == 404 && error.status == 404 && strcmp(error.code, "not-found") == 0);
    snprintf(path, sizeof path, "%s/messages", topic_path);
    OK(wherry_call_start(client, "POST", path, &plain, 1, "by a call", 9, &request, &error));
    OK(wherry_wait(client, request, &answer, SOON_MS, &error));
    CHECK(answer.kind == WHERRY_CALLED && answer.status == 201 && answer.head.size > 0);
    snprintf(path, sizeof path, "%s/subscriptions/w", topic_path);
    OK(wherry_call(client, "PUT", path, "{\"start\": \"latest\"}", NULL, SOON_MS, &error));
    snprintf(path, sizeof path, "%s/subscriptions/w/pull?wait_ms=20000", topic_path);
    OK(wherry_call_start(client, "POST", path, NULL, 0, NULL, 0, &request, &error));
    OK(wherry_call_start(client, "GET", topic_path, NULL, 0, NULL, 0, &other, &error));
    OK(wherry_wait(client, other, &answer, SOON_MS, &error)); /* a call that waits holds up no other */
    CHECK(wherry_wait(client, request, &answer, LITTLE_MS, &error) == WHERRY_TIMEOUT);
    OK(wherry_call_cancel(client, request, &error));
    CHECK(wherry_wait(client, request, &answer, SOON_MS, &error) == WHERRY_REFUSED && answer.status == 499);
    is_refused(wherry_call_cancel(client, request, &error), "invalid-input", "request");
    wherry_close(client, SOON_MS);
}

static void a_loop_of_its_own(void) { /* poll() by the program: publishes and consumes at once, and never blocks */
    enum { COUNT = 2000 };
    struct wherry *client = with_topic("{}");
    struct wherry_message message = message_of("x");
    struct wherry_delivery deliveries[64];
    struct wherry_answer answer;
    uint32_t stream = subscribed(client, "w", 200, 1, "{}"), request;
    int sent = 0, confirmed = 0, got = 0, settled = 0, result;
    while (confirmed < COUNT || settled < COUNT) {
        struct pollfd socket;
        while (sent < COUNT && sent - confirmed < 500) {
            OK(wherry_publish_start(client, name, &message, 1, NULL, &request, &error));
            sent++;
        }
        while ((result = wherry_receive(client, stream, deliveries, 64, 0, &error)) > 0) {
            OK(wherry_settle_start(client, WHERRY_ACK, deliveries, (size_t)result, NULL, &request, &error));
            got += result;
        }
        CHECK(result == WHERRY_TIMEOUT);
        while ((result = wherry_wait(client, 0, &answer, 0, &error)) == WHERRY_OK) {
            if (answer.kind == WHERRY_PUBLISHED) confirmed++;
            else settled = wherry_in_flight(client) == 0 && got == COUNT ? COUNT : settled;
        }
        CHECK(result == WHERRY_TIMEOUT);
        if (got == COUNT && wherry_in_flight(client) == 0) settled = COUNT;
        socket.fd = wherry_fd(client);
        socket.events = wherry_events(client);
        CHECK(socket.fd >= 0 && (socket.events & POLLIN));
        if (confirmed < COUNT || settled < COUNT) CHECK(poll(&socket, 1, SOON_MS) > 0);
        OK(wherry_process(client, &error));
    }
    CHECK(wherry_due_ms(client) > 0);
    check_call(client, "/subscriptions/w", "\"lag\":0");
    wherry_close(client, SOON_MS);
}

static void heartbeats(void) {
    struct wherry_options options = {0};
    struct wherry *client;
    uint32_t stream;
    wherry_close(with_topic("{}"), SOON_MS);
    options.heartbeat_ms = 1000;
    client = connected(&options);
    stream = subscribed(client, "w", 10, 0, "{}");
    nothing_comes(client, stream, 3500); /* more than three times the heartbeat */
    CHECK(wherry_state(client) == WHERRY_STATE_OPEN);
    publish(client, "still there");
    received(client, stream);
    wherry_close(client, SOON_MS);
}

static void rights(void) { /* argument: a key that may publish to the topic of this case, and nothing else */
    struct wherry_options options = {0};
    struct wherry_message message = message_of("x");
    struct wherry_subscribe_options terms = {0};
    struct wherry *client;
    uint32_t stream;
    is_refused(wherry_connect(&client, url, NULL, SOON_MS, &error), "unauthorized", "");
    CHECK(error.status == 401 && client == NULL);
    options.key = "wk_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    is_refused(wherry_connect(&client, url, &options, SOON_MS, &error), "unauthorized", "");
    options.key = argument;
    client = connected(&options);
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    is_refused(wherry_publish(client, "other", &message, 1, NULL, NULL, SOON_MS, &error), "forbidden", "");
    terms.create = "{}";
    is_refused(wherry_subscribe(client, name, "w", &terms, &stream, SOON_MS, &error), "forbidden", "");
    is_refused(wherry_call(client, "DELETE", topic_path, NULL, NULL, SOON_MS, &error), "forbidden", "");
    CHECK(error.status == 403);
    OK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

/* -------------------------------------------------------------------------------------------- with a test beside it */

static void print_line(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

/* Publishes numbers until the argument's count is confirmed, over kills of the node: prints each that is confirmed.
 * What was not confirmed is sent again, under the same sequence, so that it is stored once. */
static void over_kills(void) {
    enum { WINDOW = 50 };
    struct wherry_options options = {0};
    struct wherry_publish_options terms = {0};
    struct wherry *client;
    long count = atol(argument), first = 0, each;
    options.reconnect = 1;
    options.backoff_first_ms = 20;
    options.backoff_cap_ms = 200;
    client = connected(&options);
    OK(wherry_call(client, "PUT", topic_path, "{}", NULL, SOON_MS, &error));
    terms.producer = "p";
    while (first < count) {
        uint32_t requests[WINDOW];
        long some = count - first < WINDOW ? count - first : WINDOW, begun = 0;
        for (each = 0; each < some; each++) {
            char payload[24];
            struct wherry_message message;
            int result;
            snprintf(payload, sizeof payload, "%ld", first + each);
            message = message_of(payload);
            terms.sequence = (uint64_t)(first + each);
            result = wherry_publish_start(client, name, &message, 1, &terms, requests + each, &error);
            CHECK(result == WHERRY_OK || result == WHERRY_CLOSED || result == WHERRY_LEAVING);
            if (result != WHERRY_OK) break;
            begun++;
        }
        for (each = 0, some = begun, begun = 0; each < some; each++) {
            struct wherry_answer answer;
            int result = wherry_wait(client, requests[each], &answer, SOON_MS, &error);
            CHECK(result == WHERRY_OK || result == WHERRY_CLOSED);
            if (result == WHERRY_OK) {
                printf("%ld\n", first + each);
                if (begun == each) begun = each + 1;
            }
        }
        fflush(stdout);
        first += begun; /* up to the first that is not confirmed */
        if (first < count && wherry_state(client) != WHERRY_STATE_OPEN) OK(wherry_reconnect(client, SOON_MS, &error));
    }
    wherry_close(client, SOON_MS);
}

/* Consumes and acks over kills and stops of the node, until "end" comes: prints what it has acked. */
static void consume_over_kills(void) {
    struct wherry_options options = {0};
    struct wherry_subscribe_options terms = {0};
    struct wherry *client;
    uint32_t stream;
    int is_over = 0;
    options.reconnect = 1;
    options.backoff_first_ms = 20;
    options.backoff_cap_ms = 200;
    client = connected(&options);
    OK(wherry_call(client, "PUT", topic_path, "{}", NULL, SOON_MS, &error));
    terms.create = "{\"start\": \"earliest\", \"retry\": {\"first_ms\": 1, \"cap_ms\": 1}}";
    terms.credit = 20;
    terms.refill = 1;
    OK(wherry_subscribe(client, name, "w", &terms, &stream, SOON_MS, &error));
    print_line("ready");
    while (!is_over) {
        struct wherry_delivery delivery = received(client, stream);
        int result = wherry_ack(client, &delivery, 1, SOON_MS, &error);
        CHECK(result == WHERRY_OK || result == WHERRY_CLOSED ||
              (result == WHERRY_REFUSED && strcmp(error.code, "stale-lease") == 0));
        if (result != WHERRY_OK) continue;
        printf("%.*s\n", (int)delivery.message.payload_size, (const char *)delivery.message.payload);
        fflush(stdout);
        is_over = is_payload(&delivery, "end");
    }
    wherry_close(client, SOON_MS);
}

/* Holds a message while the node stops: settles it, is refused new work, and continues at the next node. */
static void a_drain(void) {
    struct wherry *client = with_topic("{}");
    struct wherry_message message = message_of("x");
    struct wherry_delivery delivery, second;
    uint32_t stream = subscribed(client, "w", 10, 0, "{}");
    publish_many(client, 3);
    delivery = received(client, stream);
    print_line("holding");
    while (wherry_state(client) == WHERRY_STATE_OPEN) {
        int result = wherry_process(client, &error);
        CHECK(result == WHERRY_OK || result == WHERRY_LEAVING);
        pause_ms(5);
    }
    CHECK(wherry_state(client) == WHERRY_STATE_LEAVING);
    CHECK(wherry_publish(client, name, &message, 1, NULL, NULL, SOON_MS, &error) == WHERRY_LEAVING);
    CHECK(wherry_receive(client, stream, &second, 1, SOON_MS, &error) == WHERRY_LEAVING);
    OK(wherry_ack(client, &delivery, 1, SOON_MS, &error));
    OK(wherry_reconnect(client, SOON_MS, &error));
    is_refused(wherry_ack(client, &delivery, 1, SOON_MS, &error), "stale-lease", "");
    second = received(client, stream);
    CHECK(is_payload(&second, "1") && second.attempt == 1); /* it had been pushed, and was released */
    OK(wherry_ack(client, &second, 1, SOON_MS, &error));
    wherry_close(client, SOON_MS);
}

/* Connects to what is no good server; prints the error. With the argument `wait` it waits for a message, with `flood`
 * for the confirm of a large one. */
static void a_bad_server(void) {
    struct wherry_delivery delivery;
    struct wherry_options options = {0};
    struct wherry *client = NULL;
    uint32_t stream;
    int result;
    options.heartbeat_ms = 1000;
    result = wherry_connect(&client, url, &options, 5000, &error);
    if (result == WHERRY_OK && argument != NULL && strcmp(argument, "flood") == 0) {
        struct wherry_message message = {0};
        message.payload_size = 30 << 20;
        message.payload = calloc(1, message.payload_size);
        CHECK(message.payload != NULL);
        result = wherry_publish(client, name, &message, 1, NULL, NULL, 10000, &error);
        free((void *)(uintptr_t)message.payload);
    } else if (result == WHERRY_OK && argument != NULL) {
        result = wherry_subscribe(client, name, "w", NULL, &stream, 10000, &error);
        if (result == WHERRY_OK) result = wherry_receive(client, stream, &delivery, 1, 10000, &error);
    }
    printf("%d|%s|%s|%d|%s\n", result, error.code, error.field, error.status, error.text);
    wherry_close(client, 100);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"publish_and_confirm", publish_and_confirm},
    {"flow_is_answered", flow_is_answered},
    {"refused_with_the_field", refused_with_the_field},
    {"many_under_way", many_under_way},
    {"quiet_and_forgotten", quiet_and_forgotten},
    {"an_arrow_stream", an_arrow_stream},
    {"partitions_and_places", partitions_and_places},
    {"push_and_ack", push_and_ack},
    {"every_field", every_field},
    {"nack_and_retry", nack_and_retry},
    {"dead_letters", dead_letters},
    {"renewed_leases", renewed_leases},
    {"credit_is_honoured", credit_is_honoured},
    {"released_on_goodbye", released_on_goodbye},
    {"without_acks", without_acks},
    {"a_large_message", a_large_message},
    {"many_streams", many_streams},
    {"a_stream_that_the_broker_ends", a_stream_that_the_broker_ends},
    {"held_bytes_are_bounded", held_bytes_are_bounded},
    {"calls", calls},
    {"a_loop_of_its_own", a_loop_of_its_own},
    {"heartbeats", heartbeats},
    {"rights", rights},
    {"over_kills", over_kills},
    {"consume_over_kills", consume_over_kills},
    {"a_drain", a_drain},
    {"a_bad_server", a_bad_server},
};

int main(int count, char **given) {
    size_t each;
    if (count < 3) return 2;
    url = given[2];
    argument = count > 3 ? given[3] : NULL;
    name = count > 4 ? given[4] : given[1];
    snprintf(topic_path, sizeof topic_path, "/v1/topics/%s", name);
    for (each = 0; each < sizeof cases / sizeof *cases; each++) {
        if (strcmp(cases[each].name, given[1]) != 0) continue;
        cases[each].run();
        return 0;
    }
    fprintf(stderr, "no case %s\n", given[1]);
    return 2;
}
