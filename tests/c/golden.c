/* Frames of tests/golden in C: `golden encode` prints the frames of a client by name as hex, from the values that
 * tests/golden/wire_v1.py has; `golden decode` reads lines of name and hex from the standard input, and prints the
 * values of the frames of a server. The file is compiled together with the client, whose codec is static. */

#include "wherry.c"

#include <inttypes.h>
#include <stdio.h>

static struct wherry_text text_of(const char *text) {
    struct wherry_text made;
    made.data = text;
    made.size = strlen(text);
    return made;
}

static void show(const char *name, struct buffer *buffer, int result) {
    size_t each;
    printf("%s ", name);
    if (result != WHERRY_OK) printf("result %d", result);
    for (each = buffer->at; each < buffer->end; each++) printf("%02x", buffer->data[each]);
    printf("\n");
    drop_buffer(buffer);
}

/* The message of the golden frames that has every field. */
static void all_fields(struct wherry_message *message, struct wherry_header headers[2]) {
    memset(message, 0, sizeof *message);
    headers[0].name = text_of("a");
    headers[0].value = text_of("1");
    headers[1].name = text_of("\xc3\xbc");
    headers[1].value = text_of("");
    message->fields = 0x7F;
    message->key = text_of("k1");
    message->headers = headers;
    message->header_count = 2;
    message->priority = 7;
    message->due_ms = INT64_C(1700000000000);
    message->expires_ms = INT64_C(1700000060000);
    message->id = text_of("id-1");
    message->envelope = "\0\xff";
    message->envelope_size = 2;
}

static void encode_publishes(void) {
    struct buffer out = {0};
    struct wherry_header headers[2];
    struct wherry_message rows[2];
    struct wherry_publish_options plain = {0}, options = {0};
    struct publish publish = {0};
    size_t size;
    memset(rows, 0, sizeof rows);
    rows[0].payload = "hi";
    rows[0].payload_size = 2;
    all_fields(rows + 1, headers);
    publish.topic = "jobs";
    publish.messages = rows;
    publish.count = 1;
    publish.options = &plain;
    check_publish(&publish, &size, NULL);
    show("publish-one", &out, encode_publish(&out, 1, &publish, NULL));
    options.persistence = WHERRY_TRANSIENT;
    options.producer = "p";
    options.sequence = 3;
    options.fingerprint = 4;
    options.quiet = 1;
    publish.count = 2;
    publish.options = &options;
    check_publish(&publish, &size, NULL);
    show("publish-rows", &out, encode_publish(&out, 2, &publish, NULL));
    options.quiet = 0;
    publish.arrow = "an Arrow stream";
    publish.arrow_size = 15;
    show("publish-arrow", &out, encode_publish(&out, 3, &publish, NULL));
}

static void encode_settles(void) {
    static const uint64_t places[4][2] = {{77, 12}, {77, 13}, {77, 20}, {78, WHERRY_WHOLE_LEASE}};
    struct buffer out = {0};
    struct wherry_delivery rows[4];
    struct wherry_settle_options none = {0}, nack = {0};
    size_t each;
    memset(rows, 0, sizeof rows);
    for (each = 0; each < 4; each++) {
        rows[each].token = places[each][0];
        rows[each].offset = places[each][1];
    }
    show("settle-ack-one", &out, encode_settle(&out, 4, 1, WHERRY_ACK, rows, 1, &none, NULL));
    nack.delay_ms = 500;
    nack.error = "no";
    show("settle-nack", &out, encode_settle(&out, 5, 1, WHERRY_NACK, rows, 4, &nack, NULL));
    show("renew", &out, encode_renew(&out, 6, 1, 60000, rows, 4, NULL));
}

static void encode_all(void) {
    struct buffer out = {0}, terms = {0};
    struct wherry_subscribe_options options = {0};
    struct wherry_header json;
    show("hello-client", &out, encode_hello(&out, "example", 1, 20000, NULL));
    show("ping", &out, encode_empty(&out, PING, 0, 7, NULL));
    show("pong", &out, encode_empty(&out, PONG, 0, 7, NULL));
    show("goodbye", &out, encode_goodbye(&out, "the broker is closing", NULL));
    encode_publishes();
    options.credit = 100;
    options.create = "{}";
    put_terms(&terms, "jobs", "workers", &options, NULL);
    show("subscribe", &out, encode_subscribe(&out, 1, terms.data, filled(&terms), NULL));
    drop_buffer(&terms);
    show("credit", &out, encode_credit(&out, 1, 50, NULL));
    show("cancel-stream", &out, encode_empty(&out, CANCEL, FLAG_STREAM, 1, NULL));
    show("cancel-call", &out, encode_empty(&out, CANCEL, 0, 9, NULL));
    encode_settles();
    json.name = text_of("content-type");
    json.value = text_of("application/json");
    show("call", &out, encode_call(&out, 9, "PUT", "/v1/topics/jobs", &json, 1, "{\"partitions\":2}", 16, NULL));
}

static void print_bytes(const char *label, const void *data, size_t size) {
    const uint8_t *bytes = data;
    size_t each;
    printf(" %s=", label);
    for (each = 0; each < size; each++) printf("%02x", bytes[each]);
}

static int print_rows(const uint8_t *body, size_t size, struct wherry_error *error) {
    struct wherry_header headers[WHERRY_HEADERS_MAX];
    struct rows rows;
    struct wherry_delivery row;
    size_t row_count, header_count, each;
    int result = check_deliver(body, size, &row_count, &header_count, error);
    if (result != WHERRY_OK) return result;
    begin_rows(&rows, body, size);
    while (next_row(&rows, &row, headers, error) == 1) {
        const struct wherry_message *message = &row.message;
        printf(" row token=%" PRIu64 " partition=%u offset=%" PRIu64 " published=%" PRId64 " attempt=%u", row.token,
               row.partition, row.offset, row.published_us, row.attempt);
        if (message->fields & WHERRY_KEY) print_bytes("key", message->key.data, message->key.size);
        for (each = 0; (message->fields & WHERRY_HEADERS) && each < message->header_count; each++) {
            print_bytes("name", message->headers[each].name.data, message->headers[each].name.size);
            print_bytes("value", message->headers[each].value.data, message->headers[each].value.size);
        }
        if (message->fields & WHERRY_PRIORITY) printf(" priority=%u", message->priority);
        if (message->fields & WHERRY_DUE) printf(" due=%" PRId64, message->due_ms);
        if (message->fields & WHERRY_EXPIRES) printf(" expires=%" PRId64, message->expires_ms);
        if (message->fields & WHERRY_ID) print_bytes("id", message->id.data, message->id.size);
        if (message->fields & WHERRY_ENVELOPE) print_bytes("envelope", message->envelope, message->envelope_size);
        print_bytes("payload", message->payload, message->payload_size);
    }
    return WHERRY_OK;
}

static int print_confirm(const uint8_t *body, size_t size, struct wherry_error *error) {
    struct confirm confirm;
    struct entry entry;
    struct wherry_place place;
    uint32_t each;
    int result = check_confirm(body, size, error);
    if (result != WHERRY_OK) return result;
    for (begin_confirm(&confirm, body, size, error); confirm.left > 0;) {
        next_entry(&confirm, &entry, error);
        printf(" entry first=%" PRIu32 " requests=%" PRIu32 " partition=%u offset=%" PRIu64 " flags=%u dead=%" PRIu32,
               entry.first, entry.requests, entry.partition, entry.offset, entry.flags, entry.dead);
        for (each = 0; each < entry.place_count; each++) {
            read_place(entry.places + (size_t)each * PLACE_BYTES, &place);
            printf(" place partition=%u offset=%" PRIu64 " messages=%" PRIu32, place.partition, place.offset,
                   place.messages);
        }
    }
    return WHERRY_OK;
}

static int print_answer(const uint8_t *body, size_t size, struct wherry_error *error) {
    struct wherry_text head, content;
    int status, result = decode_answer(body, size, &head, &content, &status, error);
    if (result != WHERRY_OK) return result;
    printf(" status=%d", status);
    print_bytes("body", content.data, content.size);
    return WHERRY_OK;
}

static int print_document(const struct frame *frame, struct wherry_error *error) {
    static const char *const texts[] = {"reason", "consumer", "name"}, *const numbers[] = {"version", "heartbeat_ms",
                                                                                            "lease_ms"};
    struct wherry_text text, value;
    char copy[256];
    size_t each;
    text.data = (const char *)frame->body;
    text.size = frame->size;
    if (frame->kind == ERROR || frame->kind == MOVED) {
        if (frame->kind == ERROR ? !read_problem(text, error) : !read_moved(text, error))
            return broke(error, "body", "a document");
        printf(" code=%s status=%d field=%s given=%s allowed=%s", error->code, error->status, error->field,
               error->given, error->allowed);
        return WHERRY_OK;
    }
    if (json_member(text, "", &value) < 0) return broke(error, "body", "a document");
    for (each = 0; each < 3; each++) {
        json_copy(text, texts[each], copy, sizeof copy);
        if (copy[0] != 0) printf(" %s=%s", texts[each], copy);
        if (json_member(text, numbers[each], &value) == 1)
            printf(" %s=%" PRId64, numbers[each], json_count(text, numbers[each], INT_MAX, -1));
    }
    return WHERRY_OK;
}

/* Prints what one frame holds, or the field that is wrong. */
static void decode(const uint8_t *data, size_t size) {
    struct wherry_error error;
    struct frame frame;
    size_t each;
    int whole, result = WHERRY_OK;
    clear_error(&error);
    whole = read_frame(data, size, &frame, &error);
    if (whole != 1 || frame.size != size - HEADER_BYTES) {
        printf(whole < 0 ? " fault=%s" : " not one frame%s", error.field);
        return;
    }
    printf(" kind=%d flags=%d id=%" PRIu32, frame.kind, frame.flags, frame.id);
    if (frame.kind == CONFIRM) {
        result = print_confirm(frame.body, frame.size, &error);
    } else if (frame.kind == DELIVER && !(frame.flags & FLAG_ARROW)) {
        result = print_rows(frame.body, frame.size, &error);
    } else if (frame.kind == DELIVER) {
        print_bytes("arrow", frame.body, frame.size);
    } else if (frame.kind == SETTLED) {
        if (frame.size == 0 || frame.size % 8 != 0) result = broke(&error, "requests", "ranges");
        for (each = 0; result == WHERRY_OK && each < frame.size; each += 8)
            printf(" range first=%" PRIu32 " requests=%" PRIu32, load32(frame.body + each),
                   load32(frame.body + each + 4));
    } else if (frame.kind == ANSWER) {
        result = print_answer(frame.body, frame.size, &error);
    } else if (frame.size > 0) {
        result = print_document(&frame, &error);
    }
    if (result != WHERRY_OK) printf(" fault=%s", error.field);
}

int main(int count, char **given) {
    static char line[1 << 20];
    if (count == 2 && strcmp(given[1], "encode") == 0) {
        encode_all();
        return 0;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *hex = strchr(line, ' ');
        size_t size = 0;
        uint8_t *data;
        if (hex == NULL) return 2;
        *hex++ = 0;
        data = malloc(strlen(hex) / 2 + 1); /* of its exact size where it matters: a byte too far is found */
        for (; hex_value(hex[0]) >= 0 && hex_value(hex[1]) >= 0; hex += 2)
            data[size++] = (uint8_t)(hex_value(hex[0]) << 4 | hex_value(hex[1]));
        printf("%s", line);
        {
            uint8_t *exact = malloc(size == 0 ? 1 : size);
            memcpy(exact, data, size);
            decode(exact, size);
            free(exact);
        }
        printf("\n");
        free(data);
    }
    return 0;
}
