/* wherry.c: the client of wherry.h, in one file. docs/wire.md is the specification of the bytes.
 *
 *     codec        frames and JSON as bytes and values: no socket, no clock; tests feed it with random bytes
 *     transport    a socket that never blocks, with TLS or without
 *     connection   upgrade, HELLO, heartbeats; what each frame of the server means
 *     requests     a table of slots by number: what is under way, and answers that were not collected
 *     streams      queues of pushed messages, credit, settles
 *
 * All bytes of the server are checked before any of them is used: a frame that breaks a rule ends the connection.
 */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "wherry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifdef WHERRY_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

/* ================================================================================================= texts and errors */

/* Joins texts, up to NULL, into a buffer; cuts what does not fit, but no character of UTF-8 in two. */
static void join(char *to, size_t room, ...) {
    va_list texts;
    const char *text;
    size_t at = 0;
    va_start(texts, room);
    while ((text = va_arg(texts, const char *)) != NULL) {
        while (*text != 0 && at + 1 < room) to[at++] = *text++;
        if (*text != 0) {
            if (((unsigned char)*text & 0xC0) == 0x80) {
                while (at > 0 && ((unsigned char)to[at - 1] & 0xC0) == 0x80) at--;
                if (at > 0) at--;
            }
            break;
        }
    }
    va_end(texts);
    to[at] = 0;
}

/* The digits of a number, in a buffer of the caller. */
static const char *digits(char buffer[24], int64_t value) {
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char *at = buffer + 23;
    *at = 0;
    do *--at = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0) *--at = '-';
    return at;
}

static void clear_error(struct wherry_error *error) {
    if (error == NULL) return;
    error->result = WHERRY_OK;
    error->status = 0;
    error->id = 0;
    error->code[0] = error->field[0] = error->given[0] = error->allowed[0] = error->text[0] = 0;
}

/* Fills an error with a text, and returns its result. */
static int fail(struct wherry_error *error, int result, const char *code, const char *text, const char *more) {
    if (error != NULL) {
        clear_error(error);
        error->result = result;
        join(error->code, sizeof error->code, code, NULL);
        join(error->text, sizeof error->text, text, more == NULL ? "" : more, NULL);
    }
    return result;
}

/* Fills an error about a field: what was given, and what is allowed. */
static int refuse(struct wherry_error *error, int result, const char *code, const char *field, const char *given,
                  const char *allowed) {
    if (error != NULL) {
        clear_error(error);
        error->result = result;
        join(error->code, sizeof error->code, code, NULL);
        join(error->field, sizeof error->field, field, NULL);
        join(error->given, sizeof error->given, given, NULL);
        join(error->allowed, sizeof error->allowed, allowed, NULL);
        join(error->text, sizeof error->text, field, ": ", given, " was given; allowed is ", allowed, NULL);
    }
    return result;
}

static int refuse_number(struct wherry_error *error, const char *field, int64_t given, const char *allowed) {
    char buffer[24];
    return refuse(error, WHERRY_REFUSED, "invalid-input", field, digits(buffer, given), allowed);
}

/* Fills an error about a rule that the server broke. */
static int broke(struct wherry_error *error, const char *field, const char *rule) {
    if (error != NULL) {
        clear_error(error);
        error->result = WHERRY_CLOSED;
        join(error->code, sizeof error->code, "protocol", NULL);
        join(error->field, sizeof error->field, field, NULL);
        join(error->allowed, sizeof error->allowed, rule, NULL);
        join(error->text, sizeof error->text, "the server broke the protocol: ", field, ": ", rule, NULL);
    }
    return WHERRY_CLOSED;
}

static int no_memory(struct wherry_error *error) {
    return fail(error, WHERRY_NO_MEMORY, "no-memory", "no memory is left", NULL);
}

static int is_utf8(const uint8_t *at, size_t size) {
    const uint8_t *end = at + size;
    while (at < end) {
        unsigned first = *at++, more, low = 0x80, high = 0xBF;
        if (first < 0x80) continue;
        if (first < 0xC2 || first > 0xF4) return 0;
        more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        /* The first of these excludes forms that are too long, the others surrogates and what is beyond Unicode. */
        if (first == 0xE0) low = 0xA0;
        if (first == 0xF0) low = 0x90;
        if (first == 0xED) high = 0x9F;
        if (first == 0xF4) high = 0x8F;
        if ((size_t)(end - at) < more || *at < low || *at > high) return 0;
        for (at++; --more > 0; at++)
            if ((*at & 0xC0) != 0x80) return 0;
    }
    return 1;
}

/* ========================================================================================================== buffers */

enum { KEPT_BYTES = 1 << 20 }; /* an empty buffer that is larger is freed */

/* Bytes from `at` to `end`. `failed` is set when there was no memory: bytes that are put after that are dropped. */
struct buffer {
    uint8_t *data;
    size_t at, end, room;
    int failed;
};

static size_t filled(const struct buffer *buffer) { return buffer->end - buffer->at; }

/* Makes room for more bytes behind the end; 0 if there is no memory. */
static int grow(struct buffer *buffer, size_t more) {
    size_t size = filled(buffer), room = buffer->room;
    uint8_t *data;
    if (buffer->failed) return 0;
    if (buffer->room - buffer->end >= more) return 1;
    if (buffer->room >= size + more && buffer->at >= size) { /* moves few bytes, and none of them twice soon */
        memcpy(buffer->data, buffer->data + buffer->at, size);
        buffer->at = 0;
        buffer->end = size;
        return 1;
    }
    if (room < 4096) room = 4096;
    while (room < size + more) room *= 2;
    data = malloc(room);
    if (data == NULL) {
        buffer->failed = 1;
        return 0;
    }
    if (size > 0) memcpy(data, buffer->data + buffer->at, size);
    free(buffer->data);
    buffer->data = data;
    buffer->at = 0;
    buffer->end = size;
    buffer->room = room;
    return 1;
}

static void drop_buffer(struct buffer *buffer) {
    free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

/* Takes bytes from the front. */
static void consume(struct buffer *buffer, size_t size) {
    buffer->at += size;
    if (buffer->at < buffer->end) return;
    buffer->at = buffer->end = 0;
    if (buffer->room > KEPT_BYTES) drop_buffer(buffer);
}

static void put(struct buffer *buffer, const void *data, size_t size) {
    if (size == 0 || !grow(buffer, size)) return;
    memcpy(buffer->data + buffer->end, data, size);
    buffer->end += size;
}

static void store(uint8_t *to, uint64_t value, int bytes) {
    int each;
    for (each = 0; each < bytes; each++) to[each] = (uint8_t)(value >> 8 * each);
}

static uint64_t load(const uint8_t *from, int bytes) {
    uint64_t value = 0;
    while (bytes-- > 0) value = value << 8 | from[bytes];
    return value;
}

static uint16_t load16(const uint8_t *from) { return (uint16_t)load(from, 2); }
static uint32_t load32(const uint8_t *from) { return (uint32_t)load(from, 4); }
static uint64_t load64(const uint8_t *from) { return load(from, 8); }

/* Two's complement, without a conversion that the language leaves open. */
static int64_t load_signed(const uint8_t *from) {
    uint64_t value = load64(from);
    return value <= INT64_MAX ? (int64_t)value : -1 - (int64_t)(UINT64_MAX - value);
}

static void put_number(struct buffer *buffer, uint64_t value, int bytes) {
    uint8_t data[8];
    store(data, value, bytes);
    put(buffer, data, (size_t)bytes);
}

/* ============================================================================================================= JSON */

/* Documents of the wire are small and flat: a member is looked for where it is needed, without a tree of values. */

enum { JSON_DEPTH_MAX = 32 };

struct json {
    const char *at, *end;
};

static void json_space(struct json *json) {
    while (json->at < json->end && strchr(" \t\r\n", *json->at) != NULL && *json->at != 0) json->at++;
}

/* Takes one character, behind white space; 0 if another one is there. */
static int json_take(struct json *json, char sign) {
    json_space(json);
    if (json->at >= json->end || *json->at != sign) return 0;
    json->at++;
    return 1;
}

static int hex_value(char sign) {
    if (sign >= '0' && sign <= '9') return sign - '0';
    if (sign >= 'a' && sign <= 'f') return sign - 'a' + 10;
    if (sign >= 'A' && sign <= 'F') return sign - 'A' + 10;
    return -1;
}

static int json_skip_text(struct json *json) {
    int each;
    if (!json_take(json, '"')) return 0;
    while (json->at < json->end && *json->at != '"') {
        if ((unsigned char)*json->at < 0x20) return 0;
        if (*json->at++ != '\\') continue;
        if (json->at >= json->end || *json->at == 0 || strchr("\"\\/bfnrtu", *json->at) == NULL) return 0;
        if (*json->at++ != 'u') continue;
        if (json->end - json->at < 4) return 0;
        for (each = 0; each < 4; each++)
            if (hex_value(*json->at++) < 0) return 0;
    }
    return json_take(json, '"');
}

static int json_skip_number(struct json *json) {
    const char *start = json->at;
    while (json->at < json->end && *json->at != 0 && strchr("+-.0123456789eE", *json->at) != NULL) json->at++;
    return json->at > start;
}

static int json_skip(struct json *json, int depth);

/* Skips what is between the brackets of a list or an object. */
static int json_skip_inside(struct json *json, int is_object, int depth) {
    char end = is_object ? '}' : ']';
    json->at++;
    if (json_take(json, end)) return 1;
    do {
        if (is_object && (!json_skip_text(json) || !json_take(json, ':'))) return 0;
        if (!json_skip(json, depth)) return 0;
    } while (json_take(json, ','));
    return json_take(json, end);
}

/* Skips one value; 0 if there is none. */
static int json_skip(struct json *json, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    size_t each;
    json_space(json);
    if (json->at >= json->end || depth > JSON_DEPTH_MAX) return 0;
    if (*json->at == '"') return json_skip_text(json);
    if (*json->at == '{' || *json->at == '[') return json_skip_inside(json, *json->at == '{', depth + 1);
    for (each = 0; each < sizeof words / sizeof *words; each++) {
        size_t size = strlen(words[each]);
        if ((size_t)(json->end - json->at) >= size && memcmp(json->at, words[each], size) == 0) {
            json->at += size;
            return 1;
        }
    }
    return json_skip_number(json);
}

/* Writes a character as UTF-8; returns the bytes. */
static size_t utf8_of(uint32_t sign, char to[4]) {
    if (sign < 0x80) {
        to[0] = (char)sign;
        return 1;
    }
    if (sign < 0x800) {
        to[0] = (char)(0xC0 | sign >> 6);
        to[1] = (char)(0x80 | (sign & 0x3F));
        return 2;
    }
    if (sign < 0x10000) {
        to[0] = (char)(0xE0 | sign >> 12);
        to[1] = (char)(0x80 | (sign >> 6 & 0x3F));
        to[2] = (char)(0x80 | (sign & 0x3F));
        return 3;
    }
    to[0] = (char)(0xF0 | sign >> 18);
    to[1] = (char)(0x80 | (sign >> 12 & 0x3F));
    to[2] = (char)(0x80 | (sign >> 6 & 0x3F));
    to[3] = (char)(0x80 | (sign & 0x3F));
    return 4;
}

static uint32_t json_hex(const char *at) {
    return (uint32_t)(hex_value(at[0]) << 12 | hex_value(at[1]) << 8 | hex_value(at[2]) << 4 | hex_value(at[3]));
}

/* Reads the escape behind a backslash of a text that was skipped before, so that it is whole. */
static uint32_t json_escape(const char **at, const char *end) {
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char sign = *(*at)++;
    uint32_t value, low;
    const char *found;
    if (sign != 'u') return (uint32_t)(unsigned char)((found = strchr(from, sign)) != NULL ? to[found - from] : sign);
    value = json_hex(*at);
    *at += 4;
    if (value < 0xD800 || value > 0xDFFF) return value == 0 ? 0xFFFD : value; /* no text of ours holds a 0 */
    if (value < 0xDC00 && end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u') {
        low = json_hex(*at + 2);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            *at += 6;
            return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    return 0xFFFD; /* half a pair */
}

/* Copies the text of a value, ended by 0; cuts what does not fit. 0 if the value is no text. */
static int json_text(struct wherry_text value, char *to, size_t room) {
    const char *at, *end;
    size_t used = 0;
    to[0] = 0;
    if (value.size < 2 || value.data[0] != '"') return 0;
    end = value.data + value.size - 1;
    for (at = value.data + 1; at < end;) {
        char sign[4];
        size_t size, first = (unsigned char)*at;
        if (*at == '\\') {
            at++;
            size = utf8_of(json_escape(&at, end), sign);
        } else {
            size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
            if (size > (size_t)(end - at)) size = (size_t)(end - at);
            memcpy(sign, at, size);
            at += size;
        }
        if (used + size + 1 > room) break;
        memcpy(to + used, sign, size);
        used += size;
    }
    to[used] = 0;
    return 1;
}

/* Reads a whole number that is not negative; 0 if the value is none. */
static int json_number(struct wherry_text value, int64_t most, int64_t *number) {
    size_t each;
    int64_t sum = 0;
    if (value.size == 0 || (value.size > 1 && value.data[0] == '0')) return 0; /* JSON has no zeroes in front */
    for (each = 0; each < value.size; each++) {
        int digit = value.data[each] - '0';
        if (digit < 0 || digit > 9 || sum > (most - digit) / 10) return 0;
        sum = sum * 10 + digit;
    }
    *number = sum;
    return 1;
}

/* Finds a member of an object by its name. 1: found, 0: missing, -1: not an object of JSON. The last one counts. */
static int json_member(struct wherry_text text, const char *name, struct wherry_text *value) {
    struct json json;
    int found = 0;
    json.at = text.data;
    json.end = text.data + text.size;
    if (!is_utf8((const uint8_t *)text.data, text.size) || !json_take(&json, '{')) return -1;
    if (!json_take(&json, '}')) {
        do {
            struct wherry_text key;
            char named[32];
            json_space(&json);
            key.data = json.at;
            if (!json_skip_text(&json)) return -1;
            key.size = (size_t)(json.at - key.data);
            if (!json_take(&json, ':')) return -1;
            json_space(&json);
            text.data = json.at;
            if (!json_skip(&json, 1)) return -1;
            json_text(key, named, sizeof named);
            if (strcmp(named, name) == 0) {
                found = 1;
                value->data = text.data;
                value->size = (size_t)(json.at - text.data);
            }
        } while (json_take(&json, ','));
        if (!json_take(&json, '}')) return -1;
    }
    json_space(&json);
    return json.at == json.end ? found : -1;
}

/* Copies a member that is a text; an empty text if it is missing or something else. */
static void json_copy(struct wherry_text text, const char *name, char *to, size_t room) {
    struct wherry_text value;
    to[0] = 0;
    if (json_member(text, name, &value) == 1) json_text(value, to, room);
}

/* Returns a member that is a number; `otherwise` if it is missing or something else. */
static int64_t json_count(struct wherry_text text, const char *name, int64_t most, int64_t otherwise) {
    struct wherry_text value;
    int64_t number;
    return json_member(text, name, &value) == 1 && json_number(value, most, &number) ? number : otherwise;
}

static void put_text(struct buffer *buffer, const char *text) { put(buffer, text, strlen(text)); }

/* Puts a text in quotes. */
static void put_quoted(struct buffer *buffer, const char *text, size_t size) {
    static const char hex[] = "0123456789abcdef";
    size_t each, start = 0;
    put_text(buffer, "\"");
    for (each = 0; each < size; each++) {
        unsigned char sign = (unsigned char)text[each];
        char escape[6] = {'\\', 'u', '0', '0', 0, 0};
        if (sign >= 0x20 && sign != '"' && sign != '\\') continue;
        put(buffer, text + start, each - start);
        start = each + 1;
        escape[4] = hex[sign >> 4];
        escape[5] = hex[sign & 15];
        if (sign < 0x20) {
            put(buffer, escape, sizeof escape);
        } else {
            escape[1] = (char)sign;
            put(buffer, escape, 2);
        }
    }
    put(buffer, text + start, size - start);
    put_text(buffer, "\"");
}

/* Puts the name of a member, behind a comma unless it is the first. */
static void put_name(struct buffer *buffer, const char *name) {
    uint8_t last = buffer->failed || buffer->end == buffer->at ? '{' : buffer->data[buffer->end - 1];
    put_text(buffer, last == '{' ? "\"" : ",\"");
    put_text(buffer, name);
    put_text(buffer, "\":");
}

static void put_member_text(struct buffer *buffer, const char *name, const char *text) {
    if (text == NULL) return;
    put_name(buffer, name);
    put_quoted(buffer, text, strlen(text));
}

static void put_member_number(struct buffer *buffer, const char *name, int64_t number) {
    char space[24];
    put_name(buffer, name);
    put_text(buffer, digits(space, number));
}

/* =========================================================================================================== frames */

/*  byte    0         4      5       6          8        12
 *          | length  | kind | flags | reserved | id     | body
 *          | u32     | u8   | u8    | u16 = 0  | u32    | `length` bytes         all numbers little-endian
 */

enum { HEADER_BYTES = 12 };

enum kind {
    HELLO = 0x01,
    PING = 0x02,
    PONG = 0x03,
    GOODBYE = 0x04,
    ERROR = 0x05,
    MOVED = 0x06,
    PUBLISH = 0x10,
    CONFIRM = 0x11,
    SUBSCRIBE = 0x20,
    SUBSCRIBED = 0x21,
    CREDIT = 0x22,
    DELIVER = 0x23,
    CANCEL = 0x24,
    SETTLE = 0x30,
    SETTLED = 0x31,
    RENEW = 0x32,
    CALL = 0x40,
    ANSWER = 0x41
};

enum { FLAG_ARROW = 0x01, FLAG_QUIET = 0x02, FLAG_STREAM = 0x04 };

enum {
    OPTIONS_BYTES_MAX = 16384,
    CALL_HEAD_BYTES_MAX = 32768,
    DOCUMENT_BYTES_MAX = 65536,
    SETTLE_RANGES_MAX = 65536, /* parts and ranges of one SETTLE, tokens of one RENEW */
    ENTRY_BYTES = 24,
    PLACE_BYTES = 16,
    PART_BYTES = 16,
    ROW_BYTES = 5,
    DELIVERED_BYTES = 23
};

struct frame {
    int kind, flags;
    uint32_t id;
    const uint8_t *body;
    size_t size;
};

enum ids { ANY_ID, NO_ID, SOME_ID };

/* What a server may send: its flags, whether its id is 0, and whether it has a body. */
static int rule_of(int kind, int *flags, enum ids *ids, int *has_body) {
    *flags = 0;
    *ids = NO_ID;
    *has_body = 1;
    switch (kind) {
    case HELLO:
    case GOODBYE:
    case CONFIRM:
    case SETTLED: return 1;
    case PING:
    case PONG: *ids = ANY_ID, *has_body = 0; return 1;
    case ERROR:
    case MOVED: *flags = FLAG_STREAM, *ids = ANY_ID; return 1;
    case SUBSCRIBED:
    case ANSWER: *ids = SOME_ID; return 1;
    case DELIVER: *flags = FLAG_ARROW, *ids = SOME_ID; return 1;
    case CANCEL: *flags = FLAG_STREAM, *ids = SOME_ID, *has_body = 0; return 1;
    default: return 0;
    }
}

/* Reads a frame of the server from the start of some bytes. 1: it is whole, 0: more bytes are needed, -1: an error. */
static int read_frame(const uint8_t *data, size_t size, struct frame *frame, struct wherry_error *error) {
    int flags, has_body;
    enum ids ids;
    uint32_t length;
    if (size < HEADER_BYTES) return 0;
    length = load32(data);
    frame->kind = data[4];
    frame->flags = data[5];
    frame->id = load32(data + 8);
    frame->body = data + HEADER_BYTES;
    frame->size = length;
    if (!rule_of(frame->kind, &flags, &ids, &has_body)) {
        broke(error, "kind", "a kind of frame that a server sends");
    } else if (length > WHERRY_FRAME_BYTES_MAX) {
        broke(error, "length", "at most 33554432 bytes in a frame");
    } else if (!has_body && length > 0) {
        broke(error, "length", "0, since this kind of frame has no body");
    } else if (data[6] != 0 || data[7] != 0) {
        broke(error, "reserved", "0");
    } else if ((frame->flags & ~flags) != 0) {
        broke(error, "flags", "those that this kind of frame has");
    } else if (ids != ANY_ID && (ids == SOME_ID) != (frame->id != 0)) {
        broke(error, "id", ids == SOME_ID ? "a number from 1 on" : "0 in this kind of frame");
    } else {
        return size - HEADER_BYTES >= length;
    }
    return -1;
}

/* Begins a frame at the end of a buffer; returns where, counted from the front of the buffer. */
static size_t begin_frame(struct buffer *buffer, int kind, int flags, uint32_t id) {
    uint8_t header[HEADER_BYTES] = {0};
    size_t start = filled(buffer);
    header[4] = (uint8_t)kind;
    header[5] = (uint8_t)flags;
    store(header + 8, id, 4);
    put(buffer, header, sizeof header);
    return start;
}

/* Ends a frame: fills in its length. A frame that has no memory or is too long is taken back. */
static int end_frame(struct buffer *buffer, size_t start, struct wherry_error *error) {
    size_t length;
    if (buffer->failed) {
        buffer->failed = 0;
        buffer->end = buffer->at + start;
        return no_memory(error);
    }
    length = filled(buffer) - start - HEADER_BYTES;
    if (length > WHERRY_FRAME_BYTES_MAX) {
        buffer->end = buffer->at + start;
        return refuse_number(error, "length", (int64_t)length, "at most 33554432 bytes in a frame");
    }
    store(buffer->data + buffer->at + start, length, 4);
    return WHERRY_OK;
}

static int encode_empty(struct buffer *buffer, int kind, int flags, uint32_t id, struct wherry_error *error) {
    return end_frame(buffer, begin_frame(buffer, kind, flags, id), error);
}

/* Pads the body of a frame to a multiple of 8 from its start. */
static void put_padding(struct buffer *buffer, size_t start) {
    static const uint8_t zeroes[8] = {0};
    put(buffer, zeroes, (0 - (filled(buffer) - start - HEADER_BYTES)) & 7);
}

static int encode_hello(struct buffer *buffer, const char *name, int arrow, uint32_t heartbeat_ms,
                        struct wherry_error *error) {
    size_t start = begin_frame(buffer, HELLO, 0, 0);
    put_text(buffer, "{\"versions\":[1],\"name\":");
    put_quoted(buffer, name, strlen(name));
    put_text(buffer, arrow ? ",\"features\":[\"arrow\"]" : ",\"features\":[]");
    put_member_number(buffer, "heartbeat_ms", heartbeat_ms);
    put_member_number(buffer, "frame_bytes_max", WHERRY_FRAME_BYTES_MAX);
    put_text(buffer, "}");
    return end_frame(buffer, start, error);
}

static int encode_goodbye(struct buffer *buffer, const char *reason, struct wherry_error *error) {
    size_t start = begin_frame(buffer, GOODBYE, 0, 0);
    put_text(buffer, "{\"reason\":");
    put_quoted(buffer, reason, strlen(reason));
    put_text(buffer, "}");
    return end_frame(buffer, start, error);
}

/* ---------------------------------------------------------------------------------------------------------- PUBLISH */

static int check_text(const char *field, struct wherry_text text, struct wherry_error *error) {
    if (text.size > UINT16_MAX || (text.size > 0 && text.data == NULL))
        return refuse_number(error, field, (int64_t)text.size, "at most 65535 bytes");
    return WHERRY_OK;
}

/* Checks a message, and adds the bytes of its row. */
static int add_row_size(const struct wherry_message *message, size_t *total, struct wherry_error *error) {
    size_t size = ROW_BYTES, each;
    int result = WHERRY_OK;
    if ((message->fields & ~0x7Fu) != 0) return refuse_number(error, "fields", message->fields, "bits of 0x7f");
    if (message->payload_size > WHERRY_FRAME_BYTES_MAX || (message->payload_size > 0 && message->payload == NULL))
        return refuse_number(error, "payload", (int64_t)message->payload_size, "at most 33554432 bytes in a frame");
    if (message->fields & WHERRY_KEY) {
        result = check_text("key", message->key, error);
        size += 2 + message->key.size;
    }
    if (result == WHERRY_OK && (message->fields & WHERRY_HEADERS)) {
        if (message->header_count > WHERRY_HEADERS_MAX || (message->header_count > 0 && message->headers == NULL))
            return refuse_number(error, "headers", (int64_t)message->header_count, "at most 256 in a message");
        size += 2;
        for (each = 0; each < message->header_count && result == WHERRY_OK; each++) {
            const struct wherry_header *header = message->headers + each;
            result = check_text("headers", header->name, error);
            if (result == WHERRY_OK) result = check_text("headers", header->value, error);
            size += 4 + header->name.size + header->value.size;
        }
    }
    if (message->fields & WHERRY_PRIORITY) size += 2;
    if (message->fields & WHERRY_DUE) size += 8;
    if (message->fields & WHERRY_EXPIRES) size += 8;
    if (result == WHERRY_OK && (message->fields & WHERRY_ID)) {
        result = check_text("id", message->id, error);
        size += 2 + message->id.size;
    }
    if (result == WHERRY_OK && (message->fields & WHERRY_ENVELOPE)) {
        if (message->envelope_size > WHERRY_FRAME_BYTES_MAX ||
            (message->envelope_size > 0 && message->envelope == NULL))
            return refuse_number(error, "envelope", (int64_t)message->envelope_size, "at most 33554432 bytes");
        size += 4 + message->envelope_size;
    }
    *total += size + message->payload_size;
    return result;
}

static void put_short(struct buffer *buffer, struct wherry_text text) {
    put_number(buffer, text.size, 2);
    put(buffer, text.data, text.size);
}

static void put_row(struct buffer *buffer, const struct wherry_message *message) {
    size_t each;
    uint8_t start[ROW_BYTES];
    store(start, message->payload_size, 4);
    start[4] = (uint8_t)message->fields;
    put(buffer, start, sizeof start);
    if (message->fields & WHERRY_KEY) put_short(buffer, message->key);
    if (message->fields & WHERRY_HEADERS) {
        put_number(buffer, message->header_count, 2);
        for (each = 0; each < message->header_count; each++) {
            put_short(buffer, message->headers[each].name);
            put_short(buffer, message->headers[each].value);
        }
    }
    if (message->fields & WHERRY_PRIORITY) put_number(buffer, message->priority, 2);
    if (message->fields & WHERRY_DUE) put_number(buffer, (uint64_t)message->due_ms, 8);
    if (message->fields & WHERRY_EXPIRES) put_number(buffer, (uint64_t)message->expires_ms, 8);
    if (message->fields & WHERRY_ID) put_short(buffer, message->id);
    if (message->fields & WHERRY_ENVELOPE) {
        put_number(buffer, message->envelope_size, 4);
        put(buffer, message->envelope, message->envelope_size);
    }
    put(buffer, message->payload, message->payload_size);
}

/* Options as JSON; nothing if all of them are the defaults. */
static void put_publish_options(struct buffer *buffer, const struct wherry_publish_options *options) {
    size_t start = filled(buffer);
    put_text(buffer, "{");
    if (options->persistence != WHERRY_AS_TOPIC) {
        put_name(buffer, "persistent");
        put_text(buffer, options->persistence == WHERRY_PERSISTENT ? "true" : "false");
    }
    if (options->has_partition) put_member_number(buffer, "partition", options->partition);
    if (options->producer != NULL) {
        put_member_text(buffer, "producer", options->producer);
        put_member_number(buffer, "sequence", (int64_t)options->sequence);
    }
    if (options->fingerprint > 0) put_member_number(buffer, "fingerprint", (int64_t)options->fingerprint);
    put_member_text(buffer, "callback", options->callback);
    put_text(buffer, "}");
    if (!buffer->failed && filled(buffer) - start == 2) buffer->end = buffer->at + start;
}

/* Puts the length, which fits 2 bytes, and then the options that were put into a buffer of their own. */
static int put_options(struct buffer *buffer, struct buffer *options, struct wherry_error *error) {
    size_t size = filled(options);
    if (options->failed) buffer->failed = 1;
    if (!options->failed && size > OPTIONS_BYTES_MAX)
        return refuse_number(error, "options", (int64_t)size, "at most 16384 bytes");
    put_number(buffer, size, 2);
    if (size > 0) put(buffer, options->data + options->at, size);
    return WHERRY_OK;
}

/* The messages of a PUBLISH: rows, or an Arrow stream. */
struct publish {
    const char *topic;
    const struct wherry_message *messages;
    size_t count;
    const void *arrow;
    size_t arrow_size;
    const struct wherry_publish_options *options;
};

/* Checks a publish, and computes about how many bytes its frame has, options aside. */
static int check_publish(const struct publish *publish, size_t *size, struct wherry_error *error) {
    const struct wherry_publish_options *options = publish->options;
    size_t each, topic = strlen(publish->topic);
    int result = WHERRY_OK;
    if (topic > UINT16_MAX) return refuse_number(error, "topic", (int64_t)topic, "at most 65535 bytes");
    if (options->persistence < WHERRY_AS_TOPIC || options->persistence > WHERRY_TRANSIENT)
        return refuse_number(error, "persistence", options->persistence,
                             "WHERRY_AS_TOPIC, WHERRY_PERSISTENT or WHERRY_TRANSIENT");
    if (options->sequence > INT64_MAX || options->fingerprint > INT64_MAX)
        return refuse(error, WHERRY_REFUSED, "invalid-input",
                      options->sequence > INT64_MAX ? "sequence" : "fingerprint", "a number from 2^63 on",
                      "a smaller one");
    if (options->producer == NULL && options->sequence > 0)
        return refuse_number(error, "sequence", (int64_t)options->sequence, "a number together with a producer");
    *size = HEADER_BYTES + 2 + topic + 2 + 4;
    if (publish->arrow != NULL) {
        *size += publish->arrow_size + 7;
    } else {
        if (publish->count < 1 || publish->count > WHERRY_ROWS_MAX)
            return refuse_number(error, "count", (int64_t)publish->count, "1 to 1024 messages in a publish");
        for (each = 0; each < publish->count && result == WHERRY_OK; each++) {
            result = add_row_size(publish->messages + each, size, error);
            if (*size > WHERRY_FRAME_BYTES_MAX && result == WHERRY_OK) break;
        }
    }
    if (result == WHERRY_OK && *size > WHERRY_FRAME_BYTES_MAX)
        return refuse_number(error, "length", (int64_t)*size, "at most 33554432 bytes in a frame");
    return result;
}

/* Encodes a PUBLISH that was checked. */
static int encode_publish(struct buffer *buffer, uint32_t id, const struct publish *publish,
                          struct wherry_error *error) {
    struct buffer options = {0};
    struct wherry_text topic;
    int flags = (publish->options->quiet ? FLAG_QUIET : 0) | (publish->arrow != NULL ? FLAG_ARROW : 0), result;
    size_t each, start = begin_frame(buffer, PUBLISH, flags, id);
    topic.data = publish->topic;
    topic.size = strlen(publish->topic);
    put_short(buffer, topic);
    put_publish_options(&options, publish->options);
    result = put_options(buffer, &options, error);
    drop_buffer(&options);
    if (result != WHERRY_OK) {
        buffer->end = buffer->at + start;
        return result;
    }
    if (publish->arrow != NULL) {
        put_padding(buffer, start);
        put(buffer, publish->arrow, publish->arrow_size);
    } else {
        put_number(buffer, publish->count, 4);
        for (each = 0; each < publish->count; each++) put_row(buffer, publish->messages + each);
    }
    return end_frame(buffer, start, error);
}

/* ---------------------------------------------------------------------------------------------------------- CONFIRM */

struct entry {
    uint32_t first, requests, dead;
    uint16_t partition, flags;
    uint64_t offset;
    const uint8_t *places;
    uint32_t place_count;
};

/* Where a CONFIRM is read: its next entry, and the places behind all entries. */
struct confirm {
    const uint8_t *entry, *places, *end;
    uint32_t left;
};

static int begin_confirm(struct confirm *confirm, const uint8_t *body, size_t size, struct wherry_error *error) {
    uint64_t bytes;
    if (size < 4) return broke(error, "entries", "a count and so many entries");
    confirm->left = load32(body);
    bytes = 4 + (uint64_t)confirm->left * ENTRY_BYTES;
    if (bytes > size) return broke(error, "entries", "a count and so many entries");
    confirm->entry = body + 4;
    confirm->places = body + bytes;
    confirm->end = body + size;
    return WHERRY_OK;
}

static int next_entry(struct confirm *confirm, struct entry *entry, struct wherry_error *error) {
    const uint8_t *at = confirm->entry;
    entry->first = load32(at);
    entry->requests = load32(at + 4);
    entry->partition = load16(at + 8);
    entry->flags = load16(at + 10);
    entry->dead = load32(at + 12);
    entry->offset = load64(at + 16);
    entry->places = NULL;
    entry->place_count = 0;
    confirm->entry = at + ENTRY_BYTES;
    confirm->left--;
    if (entry->flags & WHERRY_PLACED) {
        if (confirm->end - confirm->places < 4) return broke(error, "entries", "a count and so many places");
        entry->place_count = load32(confirm->places);
        entry->places = confirm->places + 4;
        if ((uint64_t)(confirm->end - entry->places) < (uint64_t)entry->place_count * PLACE_BYTES)
            return broke(error, "entries", "a count and so many places");
        confirm->places = entry->places + (size_t)entry->place_count * PLACE_BYTES;
    }
    if (confirm->left == 0 && confirm->places != confirm->end)
        return broke(error, "entries", "a body that ends with its last entry or place");
    return WHERRY_OK;
}

static void read_place(const uint8_t *at, struct wherry_place *place) {
    place->partition = load16(at);
    place->messages = load32(at + 4);
    place->offset = load64(at + 8);
}

/* Checks a whole CONFIRM. */
static int check_confirm(const uint8_t *body, size_t size, struct wherry_error *error) {
    struct confirm confirm;
    struct entry entry;
    int result = begin_confirm(&confirm, body, size, error);
    if (result == WHERRY_OK && confirm.left == 0 && confirm.places != confirm.end)
        return broke(error, "entries", "a body that ends with its last entry or place");
    while (result == WHERRY_OK && confirm.left > 0) result = next_entry(&confirm, &entry, error);
    return result;
}

/* --------------------------------------------------------------------------------------- SUBSCRIBE, CREDIT, DELIVER */

static int encode_subscribe(struct buffer *buffer, uint32_t id, const void *terms, size_t size,
                            struct wherry_error *error) {
    size_t start = begin_frame(buffer, SUBSCRIBE, 0, id);
    put(buffer, terms, size);
    return end_frame(buffer, start, error);
}

/* Puts the document of a SUBSCRIBE. */
static int put_terms(struct buffer *buffer, const char *topic, const char *subscription,
                     const struct wherry_subscribe_options *options, struct wherry_error *error) {
    size_t start = filled(buffer);
    struct wherry_text create, any;
    if (options->buffer_messages > INT64_MAX || options->buffer_bytes > INT64_MAX)
        return refuse(error, WHERRY_REFUSED, "invalid-input",
                      options->buffer_bytes > INT64_MAX ? "buffer_bytes" : "buffer_messages", "a number from 2^63 on",
                      "a smaller one");
    put_text(buffer, "{");
    put_member_text(buffer, "topic", topic);
    put_member_text(buffer, "subscription", subscription);
    put_member_text(buffer, "consumer", options->consumer);
    if (options->credit > 0) put_member_number(buffer, "credit", options->credit);
    if (options->buffer_messages > 0)
        put_member_number(buffer, "buffer_messages", (int64_t)options->buffer_messages);
    if (options->buffer_bytes > 0) put_member_number(buffer, "buffer_bytes", (int64_t)options->buffer_bytes);
    if (options->create != NULL) {
        create.data = options->create;
        create.size = strlen(options->create);
        if (json_member(create, "", &any) < 0)
            return refuse(error, WHERRY_REFUSED, "invalid-input", "create", options->create, "an object of JSON");
        put_name(buffer, "create");
        put_text(buffer, options->create);
    }
    put_text(buffer, "}");
    if (buffer->failed) return no_memory(error);
    if (filled(buffer) - start > DOCUMENT_BYTES_MAX)
        return refuse_number(error, "create", (int64_t)(filled(buffer) - start), "at most 65536 bytes with all terms");
    return WHERRY_OK;
}

static int encode_credit(struct buffer *buffer, uint32_t stream, uint32_t messages, struct wherry_error *error) {
    size_t start = begin_frame(buffer, CREDIT, 0, stream);
    put_number(buffer, messages, 4);
    return end_frame(buffer, start, error);
}

/* Bytes that are read from the front. */
struct cursor {
    const uint8_t *at, *end;
};

static const uint8_t *take(struct cursor *cursor, size_t size) {
    const uint8_t *at = cursor->at;
    if ((size_t)(cursor->end - at) < size) return NULL;
    cursor->at += size;
    return at;
}

static int take_short(struct cursor *cursor, const char *field, struct wherry_text *text, struct wherry_error *error) {
    const uint8_t *at = take(cursor, 2);
    size_t size = at == NULL ? 0 : load16(at);
    if (at == NULL || (at = take(cursor, size)) == NULL)
        return broke(error, "rows", "a body that ends with its last row");
    if (!is_utf8(at, size)) return broke(error, field, "UTF-8");
    text->data = (const char *)at;
    text->size = size;
    return WHERRY_OK;
}

/* Reads headers; with `headers` NULL they are only checked and counted. */
static int take_headers(struct cursor *cursor, struct wherry_header *headers, size_t *count,
                        struct wherry_error *error) {
    const uint8_t *at = take(cursor, 2);
    size_t each;
    int result = WHERRY_OK;
    if (at == NULL) return broke(error, "rows", "a body that ends with its last row");
    *count = load16(at);
    if (*count > WHERRY_HEADERS_MAX) return broke(error, "headers", "at most 256 in a message");
    for (each = 0; each < *count && result == WHERRY_OK; each++) {
        struct wherry_header header;
        result = take_short(cursor, "headers", &header.name, error);
        if (result == WHERRY_OK) result = take_short(cursor, "headers", &header.value, error);
        if (result == WHERRY_OK && headers != NULL) headers[each] = header;
    }
    return result;
}

/* Reads the optional fields and the payload of a row. */
static int take_fields(struct cursor *cursor, struct wherry_message *message, struct wherry_header *headers,
                       struct wherry_error *error) {
    const uint8_t *at;
    int result = WHERRY_OK;
    unsigned fields = message->fields;
    if (fields & 0x80) return broke(error, "bits", "bits of 0x7f");
    if (fields & WHERRY_KEY) result = take_short(cursor, "key", &message->key, error);
    if (result == WHERRY_OK && (fields & WHERRY_HEADERS)) {
        result = take_headers(cursor, headers, &message->header_count, error);
        message->headers = headers;
    }
    if (result == WHERRY_OK && (fields & WHERRY_PRIORITY)) {
        if ((at = take(cursor, 2)) == NULL) return broke(error, "rows", "a body that ends with its last row");
        message->priority = load16(at);
    }
    if (result == WHERRY_OK && (fields & WHERRY_DUE)) {
        if ((at = take(cursor, 8)) == NULL) return broke(error, "rows", "a body that ends with its last row");
        message->due_ms = load_signed(at);
    }
    if (result == WHERRY_OK && (fields & WHERRY_EXPIRES)) {
        if ((at = take(cursor, 8)) == NULL) return broke(error, "rows", "a body that ends with its last row");
        message->expires_ms = load_signed(at);
    }
    if (result == WHERRY_OK && (fields & WHERRY_ID)) result = take_short(cursor, "id", &message->id, error);
    if (result == WHERRY_OK && (fields & WHERRY_ENVELOPE)) {
        if ((at = take(cursor, 4)) == NULL) return broke(error, "rows", "a body that ends with its last row");
        message->envelope_size = load32(at);
        message->envelope = take(cursor, message->envelope_size);
        if (message->envelope == NULL) return broke(error, "rows", "a body that ends with its last row");
    }
    return result;
}

/* The rows of a DELIVER, read one by one. */
struct rows {
    struct cursor cursor;
    uint32_t left; /* of this part */
    uint64_t token;
    uint16_t partition;
};

static void begin_rows(struct rows *rows, const uint8_t *body, size_t size) {
    rows->cursor.at = body;
    rows->cursor.end = body + size;
    rows->left = 0;
    rows->token = 0;
    rows->partition = 0;
}

/* Reads the next row. `headers` has room for those of the row, or is NULL. 1: a row, 0: the end, negative: an error. */
static int next_row(struct rows *rows, struct wherry_delivery *row, struct wherry_header *headers,
                    struct wherry_error *error) {
    const uint8_t *at;
    int result;
    if (rows->left == 0) {
        if (rows->cursor.at == rows->cursor.end) return 0;
        if ((at = take(&rows->cursor, PART_BYTES)) == NULL)
            return broke(error, "parts", "a body that ends with its last part");
        rows->token = load64(at);
        rows->partition = load16(at + 8);
        rows->left = load32(at + 12);
        if (load16(at + 10) != 0 || rows->left == 0)
            return broke(error, "parts", "0 in the reserved bytes, and at least one row");
    }
    if ((at = take(&rows->cursor, DELIVERED_BYTES)) == NULL)
        return broke(error, "rows", "a body that ends with its last row");
    memset(row, 0, sizeof *row);
    row->token = rows->token;
    row->partition = rows->partition;
    row->offset = load64(at);
    row->published_us = load_signed(at + 8);
    row->message.payload_size = load32(at + 16);
    row->attempt = load16(at + 20);
    row->message.fields = at[22];
    if (at[22] != 0 && (result = take_fields(&rows->cursor, &row->message, headers, error)) != WHERRY_OK) return result;
    row->message.payload = take(&rows->cursor, row->message.payload_size);
    if (row->message.payload == NULL) return broke(error, "rows", "a body that ends with its last row");
    rows->left--;
    return 1;
}

/* Checks a whole DELIVER; counts its rows and their headers. */
static int check_deliver(const uint8_t *body, size_t size, size_t *row_count, size_t *header_count,
                         struct wherry_error *error) {
    struct rows rows;
    struct wherry_delivery row;
    int result;
    *row_count = *header_count = 0;
    begin_rows(&rows, body, size);
    while ((result = next_row(&rows, &row, NULL, error)) == 1) {
        *row_count += 1;
        *header_count += row.message.header_count;
    }
    return result;
}

/* ---------------------------------------------------------------------------------------------- SETTLE, RENEW, CALL */

static void put_settle_options(struct buffer *buffer, int verb, const struct wherry_settle_options *options) {
    size_t start = filled(buffer);
    put_text(buffer, "{");
    if (verb == WHERRY_NACK && options->delay_ms != 0)
        put_member_number(buffer, "delay_ms", options->delay_ms < 0 ? 0 : options->delay_ms);
    if (verb == WHERRY_NACK || verb == WHERRY_DEAD_LETTER) put_member_text(buffer, "error", options->error);
    if (verb == WHERRY_DEAD_LETTER) put_member_text(buffer, "reason", options->reason);
    put_text(buffer, "}");
    if (!buffer->failed && filled(buffer) - start == 2) buffer->end = buffer->at + start;
}

/* Puts parts of leases: deliveries with one token are a part, those at consecutive offsets a range. Counts both. */
static size_t put_parts(struct buffer *buffer, const struct wherry_delivery *deliveries, size_t count) {
    size_t each = 0, total = 0;
    while (each < count) {
        uint64_t token = deliveries[each].token;
        size_t part = filled(buffer);
        uint32_t ranges = 0;
        put_number(buffer, token, 8);
        put_number(buffer, 0, 4);
        total++;
        if (deliveries[each].offset == WHERRY_WHOLE_LEASE) { /* a part without a range */
            each++;
            continue;
        }
        while (each < count && deliveries[each].token == token && deliveries[each].offset != WHERRY_WHOLE_LEASE) {
            uint64_t first = deliveries[each].offset, next = first;
            while (each < count && deliveries[each].token == token && deliveries[each].offset == next) each++, next++;
            put_number(buffer, first, 8);
            put_number(buffer, next - first, 4);
            ranges++, total++;
        }
        if (!buffer->failed) store(buffer->data + buffer->at + part + 8, ranges, 4);
    }
    return total;
}

static int encode_settle(struct buffer *buffer, uint32_t id, uint32_t stream, int verb,
                         const struct wherry_delivery *deliveries, size_t count,
                         const struct wherry_settle_options *options, struct wherry_error *error) {
    struct buffer text = {0};
    size_t start = begin_frame(buffer, SETTLE, 0, id), parts;
    int result;
    put_number(buffer, stream, 4);
    put_number(buffer, (uint64_t)verb, 1);
    put_number(buffer, 0, 1);
    put_settle_options(&text, verb, options);
    result = put_options(buffer, &text, error);
    drop_buffer(&text);
    if (result == WHERRY_OK) {
        parts = put_parts(buffer, deliveries, count);
        if (parts > SETTLE_RANGES_MAX && !buffer->failed)
            result = refuse_number(error, "deliveries", (int64_t)count, "at most 65536 parts and ranges of leases");
    }
    if (result != WHERRY_OK) {
        buffer->end = buffer->at + start;
        return result;
    }
    return end_frame(buffer, start, error);
}

/* Encodes a RENEW; each token once, if those of one lease lie together. */
static int encode_renew(struct buffer *buffer, uint32_t id, uint32_t stream, uint32_t lease_ms,
                        const struct wherry_delivery *deliveries, size_t count, struct wherry_error *error) {
    size_t start = begin_frame(buffer, RENEW, 0, id), each, tokens = 0;
    put_number(buffer, stream, 4);
    put_number(buffer, lease_ms, 4);
    for (each = 0; each < count; each++) {
        if (each > 0 && deliveries[each].token == deliveries[each - 1].token) continue;
        put_number(buffer, deliveries[each].token, 8);
        tokens++;
    }
    if (tokens > SETTLE_RANGES_MAX) {
        buffer->end = buffer->at + start;
        buffer->failed = 0;
        return refuse_number(error, "deliveries", (int64_t)tokens, "at most 65536 leases");
    }
    return end_frame(buffer, start, error);
}

static int encode_call(struct buffer *buffer, uint32_t id, const char *method, const char *path,
                       const struct wherry_header *headers, size_t header_count, const void *body, size_t body_size,
                       struct wherry_error *error) {
    size_t start = begin_frame(buffer, CALL, 0, id), each, head;
    put_number(buffer, 0, 4);
    put_text(buffer, "{\"method\":");
    put_quoted(buffer, method, strlen(method));
    put_member_text(buffer, "path", path);
    if (header_count > 0) put_name(buffer, "headers");
    for (each = 0; each < header_count; each++) {
        put_text(buffer, each == 0 ? "{" : ",");
        put_quoted(buffer, headers[each].name.data, headers[each].name.size);
        put_text(buffer, ":");
        put_quoted(buffer, headers[each].value.data, headers[each].value.size);
    }
    put_text(buffer, header_count > 0 ? "}}" : "}");
    if (!buffer->failed) {
        head = filled(buffer) - start - HEADER_BYTES - 4;
        if (head > CALL_HEAD_BYTES_MAX) {
            buffer->end = buffer->at + start;
            return refuse_number(error, "head", (int64_t)head, "at most 32768 bytes of method, path and headers");
        }
        store(buffer->data + buffer->at + start + HEADER_BYTES, head, 4);
    }
    if (body_size > 0) {
        put_padding(buffer, start);
        put(buffer, body, body_size);
    }
    return end_frame(buffer, start, error);
}

/* Reads an ANSWER: its head, with the status in it, and its body. */
static int decode_answer(const uint8_t *data, size_t size, struct wherry_text *head, struct wherry_text *body,
                         int *status, struct wherry_error *error) {
    size_t length = size < 4 ? 0 : load32(data), at;
    struct wherry_text value;
    int64_t number;
    if (length == 0 || length > size - 4) return broke(error, "head", "a head of JSON within the body");
    head->data = (const char *)data + 4;
    head->size = length;
    if (json_member(*head, "status", &value) != 1 || !json_number(value, 999, &number))
        return broke(error, "head", "JSON with a status");
    for (at = 4 + length; at % 8 != 0 && at < size; at++)
        if (data[at] != 0) return broke(error, "padding", "zero bytes up to a multiple of 8");
    *status = (int)number;
    body->data = (const char *)data + at;
    body->size = size - at;
    return WHERRY_OK;
}

/* Reads a problem document of an ERROR, or of a call that failed. */
static int read_problem(struct wherry_text text, struct wherry_error *error) {
    char code[sizeof error->code];
    json_copy(text, "code", code, sizeof code);
    if (code[0] == 0) return 0;
    if (error == NULL) return 1;
    clear_error(error);
    error->result = WHERRY_REFUSED;
    error->status = (int)json_count(text, "status", 999, 0);
    join(error->code, sizeof error->code, code, NULL);
    json_copy(text, "field", error->field, sizeof error->field);
    json_copy(text, "given", error->given, sizeof error->given);
    json_copy(text, "allowed", error->allowed, sizeof error->allowed);
    json_copy(text, "detail", error->text, sizeof error->text);
    return 1;
}

/* Reads a MOVED: the topic is in `given`, the address in `allowed`. */
static int read_moved(struct wherry_text text, struct wherry_error *error) {
    struct wherry_text any;
    char topic[128], url[256];
    if (json_member(text, "topic", &any) != 1 || json_member(text, "url", &any) != 1) return 0;
    json_copy(text, "topic", topic, sizeof topic);
    json_copy(text, "url", url, sizeof url);
    refuse(error, WHERRY_REFUSED, "moved", "topic", topic, url);
    if (error != NULL) join(error->text, sizeof error->text, topic, " is served at ", url, NULL);
    return 1;
}

/* ======================================================================================================= connection */

enum {
    READ_BYTES = 64 << 10,    /* read at a time; more as a frame needs it */
    WRITE_BYTES = 64 << 10,   /* that are gathered before they are written without being asked for */
    UPGRADE_BYTES_MAX = 64 << 10,
    CONTROL_BYTES = 1 << 20,  /* beyond the bound of bytes to be written, for frames the client must send */
    PROCESS_READS = 64,       /* of one wherry_process, so that it ends however much comes */
    LEAVE_MS = 2000,          /* how long a reconnect waits for the goodbye of the old connection */
    IN_FLIGHT_MAX = 1 << 20,
    PORT = 7070
};

enum state { CLOSED, GREETING, OPEN, LEAVING };
enum slot_state { FREE, PENDING, ANSWERED };
enum failure { NONE, PROBLEM, IS_MOVED, LOST, FORGOT_MEMORY };
enum stream_state { JOINING, JOINED, WAITING, CANCELLING, ENDED };

/* One request. `extra` has the body of the frame that answered, where more is needed than fits here. */
struct slot {
    uint32_t id, next, before; /* in the list of answers, as index + 1 */
    uint8_t state, kind, failure, is_forgotten;
    uint16_t partition, flags;
    uint32_t rows, dead;
    uint64_t offset;
    uint8_t *extra;
    size_t extra_size;
};

/* One DELIVER whose rows were not all handed out. Headers of its rows and its body lie behind it. */
struct block {
    struct block *next;
    struct rows rows;
    size_t left, bytes;
    struct wherry_header *headers;
    int is_shown; /* some rows were handed out: their memory must stay until the next wherry_receive */
};

struct stream {
    uint32_t id;
    enum stream_state state;
    struct stream *next_ready;
    int is_ready;
    struct block *first, *last;
    uint8_t *terms; /* the document of SUBSCRIBE, to join again */
    size_t terms_size;
    uint32_t credit, spent; /* granted at first; settled and not granted again */
    int refill, acks;
    uint32_t lease_ms;
    char consumer[1025];
    uint8_t *problem; /* why it has ended; NULL if it was cancelled */
    size_t problem_size;
    int is_moved;
};

struct wherry {
    int fd;
    enum state state;
    uint32_t connects;
    struct wherry_error why; /* why the connection is closed */
    struct buffer in, out;
    int64_t heard_at, sent_at; /* milliseconds of the monotonic clock */
    uint32_t heartbeat_ms;
    int said_goodbye;

    char *host, *path, *key, *name, *ca_file, *cert_file, *key_file; /* copies of what connect was given */
    char port[8];
    int is_tls, reconnect;
    uint32_t heartbeat_wish_ms, backoff_first_ms, backoff_cap_ms;
    size_t out_bytes_max, held_bytes_max, held_bytes;
    uint64_t random;

    struct slot *slots;
    uint32_t slot_mask, used, pending, last_id, first_answer, last_answer;
    uint8_t *kept; /* the memory of the answer that was collected last */
    struct wherry_place *places;
    uint64_t quiet_failures;
    struct wherry_error quiet_error;

    struct stream *streams[WHERRY_STREAMS_MAX];
    uint32_t stream_count, ended_count, last_stream;
    struct stream *first_ready, *last_ready;
    struct block *shown; /* handed out whole */

#ifdef WHERRY_TLS
    SSL_CTX *tls_context;
    SSL *tls;
    struct buffer sealed; /* encrypted, to be written */
    int is_unread;        /* bytes that came wait in TLS */
#endif
};

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t deadline_of(int timeout_ms) { return timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms; }

/* Milliseconds until an instant, as poll() takes them. */
static int until(int64_t instant) {
    int64_t left;
    if (instant == INT64_MAX) return -1;
    left = instant - now_ms();
    return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

static int timed_out(struct wherry_error *error) {
    return fail(error, WHERRY_TIMEOUT, "timeout", "the time is over", NULL);
}

/* -------------------------------------------------------------------------------------------------------- transport */

static const char *system_text(int number, char *buffer, size_t room) {
    if (strerror_r(number, buffer, room) != 0) join(buffer, room, "an error of the system", NULL);
    return buffer;
}

/* Records why the connection has to end; the caller closes it. */
static int lost(struct wherry *client, const char *text, int number) {
    char buffer[128];
    fail(&client->why, WHERRY_CLOSED, "unavailable", text,
         number == 0 ? "" : system_text(number, buffer, sizeof buffer));
    return -1;
}

static int send_some(struct wherry *client, struct buffer *buffer) {
    while (filled(buffer) > 0) {
        ssize_t sent = send(client->fd, buffer->data + buffer->at, filled(buffer), MSG_NOSIGNAL);
        if (sent >= 0) {
            consume(buffer, (size_t)sent);
            client->sent_at = now_ms();
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return 0;
        } else if (errno != EINTR) {
            return lost(client, "the connection is lost: ", errno);
        }
    }
    return 1;
}

/* Receives into a buffer. Returns the bytes, 0 if there are none now, -1 at the end. */
static ssize_t receive_some(struct wherry *client, uint8_t *to, size_t room) {
    for (;;) {
        ssize_t got = recv(client->fd, to, room, 0);
        if (got > 0) return got;
        if (got == 0) return lost(client, "the server has closed the connection", 0);
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno != EINTR) return lost(client, "the connection is lost: ", errno);
    }
}

#ifdef WHERRY_TLS

static int tls_lost(struct wherry *client, const char *text) {
    char reason[200] = "";
    unsigned long number = ERR_get_error();
    long verified = client->tls == NULL ? X509_V_OK : SSL_get_verify_result(client->tls);
    if (verified != X509_V_OK)
        join(reason, sizeof reason, X509_verify_cert_error_string(verified), NULL);
    else if (number != 0)
        ERR_error_string_n(number, reason, sizeof reason);
    ERR_clear_error();
    fail(&client->why, WHERRY_CLOSED, "unavailable", text, reason);
    /* A certificate that is not trusted now will not be trusted a moment later, so there is no other try. */
    if (verified != X509_V_OK) {
        client->why.result = WHERRY_REFUSED;
        join(client->why.field, sizeof client->why.field, "ca_file", NULL);
    }
    return -1;
}

/* Moves what TLS wants to send into the buffer of sealed bytes. */
static int take_sealed(struct wherry *client) {
    BIO *from = SSL_get_wbio(client->tls);
    size_t size = BIO_ctrl_pending(from);
    int got;
    if (size == 0) return 1;
    if (size > INT_MAX || !grow(&client->sealed, size)) return lost(client, "no memory is left", 0);
    got = BIO_read(from, client->sealed.data + client->sealed.end, (int)size);
    if (got > 0) client->sealed.end += (size_t)got;
    return 1;
}

static int tls_write(struct wherry *client) {
    for (;;) {
        size_t size;
        int sent, done = take_sealed(client) < 0 ? -1 : send_some(client, &client->sealed);
        if (done <= 0) return done;
        size = filled(&client->out);
        if (size == 0) return 1;
        if (size > WRITE_BYTES) size = WRITE_BYTES; /* so that sealed bytes are bounded too */
        ERR_clear_error();
        sent = SSL_write(client->tls, client->out.data + client->out.at, (int)size);
        if (sent <= 0) return tls_lost(client, "TLS failed: ");
        consume(&client->out, (size_t)sent);
    }
}

/* Reads records until there is none or no room. poll() does not report records that stay in TLS: `is_unread` does. */
static ssize_t tls_read(struct wherry *client, uint8_t *to, size_t room) {
    uint8_t sealed[16 << 10];
    size_t size = 0;
    client->is_unread = 0;
    while (size < room) {
        size_t left = room - size;
        ssize_t got;
        int plain, kind;
        ERR_clear_error();
        plain = SSL_read(client->tls, to + size, left > INT_MAX ? INT_MAX : (int)left);
        if (plain > 0) {
            size += (size_t)plain;
            continue;
        }
        kind = SSL_get_error(client->tls, plain);
        if (kind == SSL_ERROR_WANT_READ) {
            got = receive_some(client, sealed, sizeof sealed);
            if (got > 0) BIO_write(SSL_get_rbio(client->tls), sealed, (int)got);
            if (got > 0) continue;
        } else {
            got = kind == SSL_ERROR_ZERO_RETURN ? lost(client, "the server has closed the connection", 0)
                                                : tls_lost(client, "TLS failed: ");
        }
        return size > 0 ? (ssize_t)size : got; /* the next read reports the end again */
    }
    client->is_unread = 1;
    return (ssize_t)size;
}

#endif

/* Writes what can be written now. 1: all of it, 0: some is left, -1: the connection is lost. */
static int write_now(struct wherry *client) {
#ifdef WHERRY_TLS
    if (client->tls != NULL) return tls_write(client);
#endif
    return send_some(client, &client->out);
}

static int has_to_write(const struct wherry *client) {
#ifdef WHERRY_TLS
    if (filled(&client->sealed) > 0) return 1;
#endif
    return filled(&client->out) > 0;
}

static int is_unread(const struct wherry *client) {
#ifdef WHERRY_TLS
    return client->is_unread;
#else
    (void)client;
    return 0;
#endif
}

/* Reads what is there. Returns the bytes, 0 if there are none, -1 if the connection is lost. */
static ssize_t read_now(struct wherry *client) {
    size_t room = READ_BYTES;
    ssize_t got;
    /* A large frame is read in steps that grow with the bytes that have come, not by the length that was announced. */
    if (filled(&client->in) > room) room = filled(&client->in);
    if (!grow(&client->in, room)) {
        client->in.failed = 0;
        return lost(client, "no memory is left", 0);
    }
    room = client->in.room - client->in.end;
#ifdef WHERRY_TLS
    if (client->tls != NULL)
        got = tls_read(client, client->in.data + client->in.end, room);
    else
#endif
        got = receive_some(client, client->in.data + client->in.end, room);
    if (got > 0) {
        client->in.end += (size_t)got;
        client->heard_at = now_ms();
    }
    return got;
}

/* Waits until bytes can be read, and writes meanwhile. 1: they can, 0: the time is over, or all is written and no more
 * is wanted, -1: the connection is lost. */
static int wait_for_bytes(struct wherry *client, int64_t deadline, int only_writes) {
    for (;;) {
        struct pollfd socket;
        int count;
        if (write_now(client) < 0) return -1;
        if (only_writes && !has_to_write(client)) return 0;
        if (is_unread(client)) return 1;
        socket.fd = client->fd;
        socket.events = (short)(has_to_write(client) ? POLLIN | POLLOUT : POLLIN);
        socket.revents = 0;
        count = poll(&socket, 1, until(deadline));
        if (count < 0 && errno != EINTR) return lost(client, "poll failed: ", errno);
        if (count > 0 && (socket.revents & ~POLLOUT) != 0) return 1;
        if (count <= 0 && until(deadline) == 0) return 0;
    }
}

static int wait_to_read(struct wherry *client, int64_t deadline) { return wait_for_bytes(client, deadline, 0); }

static void close_socket(struct wherry *client) {
#ifdef WHERRY_TLS
    if (client->tls != NULL) SSL_free(client->tls);
    client->tls = NULL;
    client->is_unread = 0;
    drop_buffer(&client->sealed);
#endif
    if (client->fd >= 0) close(client->fd);
    client->fd = -1;
}

/* --------------------------------------------------------------------------------------------------------- requests */

static uint32_t next_number(uint32_t number) { return number == UINT32_MAX ? 1 : number + 1; }

static struct slot *slot_of(struct wherry *client, uint32_t id) {
    struct slot *slot = client->slots + (id & client->slot_mask);
    return id != 0 && slot->state != FREE && slot->id == id ? slot : NULL;
}

static int full(struct wherry_error *error, const char *field, const char *given, const char *allowed) {
    return refuse(error, WHERRY_FULL, "limit-reached", field, given, allowed);
}

/* Takes the next free number for a request. */
static int open_slot(struct wherry *client, int kind, struct slot **slot, struct wherry_error *error) {
    char buffer[24];
    uint32_t id = next_number(client->last_id);
    if (client->used > client->slot_mask)
        return full(error, "in_flight_max", digits(buffer, (int64_t)client->used + 1),
                    "no more requests before answers are collected");
    while (client->slots[id & client->slot_mask].state != FREE) id = next_number(id);
    *slot = client->slots + (id & client->slot_mask);
    memset(*slot, 0, sizeof **slot);
    (*slot)->id = client->last_id = id;
    (*slot)->kind = (uint8_t)kind;
    (*slot)->state = PENDING;
    client->used++;
    client->pending++;
    return WHERRY_OK;
}

static void free_slot(struct wherry *client, struct slot *slot) {
    if (slot->state == PENDING) client->pending--;
    free(slot->extra);
    client->held_bytes -= slot->extra_size;
    slot->extra = NULL;
    slot->extra_size = 0;
    slot->state = FREE;
    client->used--;
}

static void unlink_answer(struct wherry *client, struct slot *slot) {
    uint32_t *after = slot->before ? &client->slots[slot->before - 1].next : &client->first_answer;
    uint32_t *before = slot->next ? &client->slots[slot->next - 1].before : &client->last_answer;
    *after = slot->next;
    *before = slot->before;
    slot->next = slot->before = 0;
}

/* Fills an error with the reason why a request failed. */
static int explain(const struct wherry *client, const struct slot *slot, struct wherry_error *error) {
    struct wherry_text text;
    int is_known = 0;
    text.data = (const char *)slot->extra;
    text.size = slot->extra_size;
    if (slot->failure == PROBLEM) is_known = read_problem(text, error);
    if (slot->failure == IS_MOVED) is_known = read_moved(text, error);
    if (slot->failure == FORGOT_MEMORY) no_memory(error), is_known = 1;
    if (!is_known)
        fail(error, WHERRY_CLOSED, "unavailable",
             "the connection was lost before the answer came, so it is not known what became of the request. ",
             client->state == CLOSED ? client->why.text : "");
    if (error != NULL) error->id = slot->id;
    return slot->failure == LOST ? WHERRY_CLOSED : slot->failure == FORGOT_MEMORY ? WHERRY_NO_MEMORY : WHERRY_REFUSED;
}

/* Notes that a request is answered: it waits to be collected, unless it was forgotten. */
static void answered(struct wherry *client, struct slot *slot) {
    uint32_t index = (uint32_t)(slot - client->slots) + 1;
    if (slot->is_forgotten) {
        if (slot->failure != NONE) {
            explain(client, slot, &client->quiet_error);
            client->quiet_failures++;
        }
        free_slot(client, slot);
        return;
    }
    client->pending--;
    slot->state = ANSWERED;
    slot->before = client->last_answer;
    slot->next = 0;
    if (client->last_answer != 0)
        client->slots[client->last_answer - 1].next = index;
    else
        client->first_answer = index;
    client->last_answer = index;
}

static void keep_extra(struct wherry *client, struct slot *slot, const uint8_t *body, size_t size) {
    slot->extra = malloc(size + 1);
    if (slot->extra == NULL) {
        slot->failure = FORGOT_MEMORY;
        return;
    }
    memcpy(slot->extra, body, size);
    slot->extra_size = size;
    client->held_bytes += size;
}

/* ---------------------------------------------------------------------------------------------------------- streams */

static struct stream *stream_of(const struct wherry *client, uint32_t id) {
    struct stream *stream = client->streams[id % WHERRY_STREAMS_MAX];
    return id != 0 && stream != NULL && stream->id == id ? stream : NULL;
}

static void free_blocks(struct block *block) {
    while (block != NULL) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
}

static void set_ready(struct wherry *client, struct stream *stream) {
    if (stream->is_ready) return;
    stream->is_ready = 1;
    stream->next_ready = NULL;
    if (client->last_ready != NULL)
        client->last_ready->next_ready = stream;
    else
        client->first_ready = stream;
    client->last_ready = stream;
}

static void unset_ready(struct wherry *client, struct stream *stream) {
    struct stream **at = &client->first_ready, *before = NULL;
    if (!stream->is_ready) return;
    while (*at != stream) {
        before = *at;
        at = &before->next_ready;
    }
    *at = stream->next_ready;
    if (client->last_ready == stream) client->last_ready = before;
    stream->is_ready = 0;
}

/* Drops rows that were not handed out. Rows of a block that was begun may be in use, so its memory stays. */
static void drop_rows(struct wherry *client, struct stream *stream) {
    while (stream->first != NULL) {
        struct block *block = stream->first;
        stream->first = block->next;
        client->held_bytes -= block->bytes;
        if (block->is_shown) {
            block->next = client->shown;
            client->shown = block;
        } else {
            free(block);
        }
    }
    stream->last = NULL;
    unset_ready(client, stream);
}

static void free_stream(struct wherry *client, struct stream *stream) {
    drop_rows(client, stream);
    if (stream->state == ENDED) client->ended_count--;
    client->streams[stream->id % WHERRY_STREAMS_MAX] = NULL;
    client->stream_count--;
    free(stream->terms);
    free(stream->problem);
    free(stream);
}

/* Ends a stream; messages that were settled as they were handed over can still be taken. */
static void end_stream(struct wherry *client, struct stream *stream, const uint8_t *problem, size_t size,
                       int is_moved) {
    if (stream->state == CANCELLING) {
        free_stream(client, stream);
        return;
    }
    if (stream->state == ENDED) return;
    if (stream->acks) drop_rows(client, stream);
    stream->state = ENDED;
    stream->is_moved = is_moved;
    client->ended_count++;
    if (size > 0 && (stream->problem = malloc(size)) != NULL) {
        memcpy(stream->problem, problem, size);
        stream->problem_size = size;
    }
}

/* Fills an error with the reason why a stream has ended, and frees the stream. */
static int report_end(struct wherry *client, struct stream *stream, struct wherry_error *error) {
    struct wherry_text text;
    int is_known = 0;
    text.data = (const char *)stream->problem;
    text.size = stream->problem_size;
    if (text.data != NULL) is_known = stream->is_moved ? read_moved(text, error) : read_problem(text, error);
    if (!is_known) fail(error, WHERRY_REFUSED, "closed", "the broker has ended the stream", NULL);
    if (error != NULL) error->id = stream->id;
    free_stream(client, stream);
    return WHERRY_REFUSED;
}

/* ------------------------------------------------------------------------------------------------------- the server */

/* Closes for the reason in `why`: requests under way are answered with the loss, streams wait for a reconnect. */
static void disconnect(struct wherry *client) {
    uint32_t each;
    close_socket(client);
    client->state = CLOSED;
    client->why.result = WHERRY_CLOSED;
    client->in.at = client->in.end = client->out.at = client->out.end = 0;
    for (each = 0; each <= client->slot_mask && client->pending > 0; each++) {
        if (client->slots[each].state != PENDING) continue;
        client->slots[each].failure = LOST;
        answered(client, client->slots + each);
    }
    for (each = 0; each < WHERRY_STREAMS_MAX; each++) {
        struct stream *stream = client->streams[each];
        if (stream == NULL || stream->state == ENDED) continue;
        if (stream->acks) drop_rows(client, stream); /* their leases have ended with the connection */
        if (stream->state == CANCELLING)
            free_stream(client, stream);
        else
            stream->state = WAITING;
    }
}

static int take_hello(struct wherry *client, struct wherry_text text) {
    struct wherry_text any;
    if (client->state != GREETING) return broke(&client->why, "kind", "HELLO once, as the first frame");
    if (json_member(text, "version", &any) != 1 || json_count(text, "version", INT_MAX, 0) != 1)
        return broke(&client->why, "version", "1, as the client has offered");
    client->heartbeat_ms = (uint32_t)json_count(text, "heartbeat_ms", INT_MAX, 0);
    client->state = OPEN;
    return WHERRY_OK;
}

/* Answers the requests of one entry of a CONFIRM. */
static int confirm_entry(struct wherry *client, const struct entry *entry) {
    uint64_t total = 0, start = 0;
    uint32_t each;
    if (entry->requests == 0 || entry->requests > client->pending || entry->first == 0 ||
        entry->first > UINT32_MAX - (entry->requests - 1) || (entry->place_count > 0 && entry->requests != 1))
        return broke(&client->why, "entries", "requests that are under way");
    for (each = 0; each < entry->requests; each++) {
        struct slot *slot = slot_of(client, entry->first + each);
        if (slot == NULL || slot->state != PENDING || slot->kind != WHERRY_PUBLISHED)
            return broke(&client->why, "entries", "requests that are under way");
        total += slot->rows;
    }
    for (each = 0; each < entry->requests; each++) {
        struct slot *slot = slot_of(client, entry->first + each);
        uint64_t stop = start + slot->rows, alive = total > entry->dead ? total - entry->dead : 0;
        slot->partition = entry->partition;
        slot->flags = entry->flags;
        slot->offset = entry->offset + start;
        slot->dead = stop <= alive ? 0 : (uint32_t)(stop - (start > alive ? start : alive));
        if (entry->place_count > 0)
            keep_extra(client, slot, entry->places, (size_t)entry->place_count * PLACE_BYTES);
        answered(client, slot);
        start = stop;
    }
    return WHERRY_OK;
}

static int take_confirm(struct wherry *client, const struct frame *frame) {
    struct confirm confirm;
    struct entry entry;
    int result = check_confirm(frame->body, frame->size, &client->why);
    if (result == WHERRY_OK) result = begin_confirm(&confirm, frame->body, frame->size, &client->why);
    while (result == WHERRY_OK && confirm.left > 0) {
        result = next_entry(&confirm, &entry, &client->why);
        if (result == WHERRY_OK) result = confirm_entry(client, &entry);
    }
    return result;
}

static int take_settled(struct wherry *client, const struct frame *frame) {
    size_t at;
    uint32_t each;
    if (frame->size == 0 || frame->size % 8 != 0)
        return broke(&client->why, "requests", "one or more ranges of 8 bytes");
    for (at = 0; at < frame->size; at += 8) {
        uint32_t first = load32(frame->body + at), count = load32(frame->body + at + 4);
        if (first == 0 || count == 0 || count > client->pending || first > UINT32_MAX - (count - 1))
            return broke(&client->why, "requests", "requests that are under way");
        for (each = 0; each < count; each++) {
            struct slot *slot = slot_of(client, first + each);
            if (slot == NULL || slot->state != PENDING ||
                (slot->kind != WHERRY_SETTLED && slot->kind != WHERRY_RENEWED))
                return broke(&client->why, "requests", "requests that are under way");
            answered(client, slot);
        }
    }
    return WHERRY_OK;
}

static int take_answer(struct wherry *client, const struct frame *frame) {
    struct wherry_text head, body;
    int status, result = decode_answer(frame->body, frame->size, &head, &body, &status, &client->why);
    struct slot *slot = slot_of(client, frame->id);
    if (result != WHERRY_OK) return result;
    if (slot == NULL || slot->state != PENDING || slot->kind != WHERRY_CALLED)
        return broke(&client->why, "id", "that of a call under way");
    if (!slot->is_forgotten) keep_extra(client, slot, frame->body, frame->size);
    answered(client, slot);
    return WHERRY_OK;
}

/* An ERROR or MOVED: of the connection, of a stream, or of a request. */
static int take_error(struct wherry *client, const struct frame *frame) {
    int is_moved = frame->kind == MOVED;
    struct stream *stream;
    struct slot *slot;
    struct wherry_text text;
    text.data = (const char *)frame->body;
    text.size = frame->size;
    if (frame->id == 0) {
        if (is_moved || !read_problem(text, &client->why)) return broke(&client->why, "body", "a problem document");
        client->why.result = WHERRY_CLOSED;
        return WHERRY_CLOSED;
    }
    if (is_moved ? !read_moved(text, NULL) : !read_problem(text, NULL))
        return broke(&client->why, "body", "a document with the fields of its kind");
    if (frame->flags & FLAG_STREAM) {
        if ((stream = stream_of(client, frame->id)) != NULL)
            end_stream(client, stream, frame->body, frame->size, is_moved);
        return WHERRY_OK;
    }
    slot = slot_of(client, frame->id);
    if (slot != NULL && slot->state == PENDING) {
        slot->failure = is_moved ? IS_MOVED : PROBLEM;
        keep_extra(client, slot, frame->body, frame->size);
        answered(client, slot);
    } else { /* of a quiet publish, which has no slot */
        if (is_moved)
            read_moved(text, &client->quiet_error);
        else
            read_problem(text, &client->quiet_error);
        client->quiet_error.id = frame->id;
        client->quiet_failures++;
    }
    return WHERRY_OK;
}

static int take_subscribed(struct wherry *client, const struct frame *frame, struct wherry_text text) {
    struct stream *stream = stream_of(client, frame->id);
    struct wherry_text value;
    if (stream == NULL) return broke(&client->why, "id", "that of a stream");
    if (stream->state == CANCELLING) return WHERRY_OK;
    if (stream->state != JOINING) return broke(&client->why, "kind", "SUBSCRIBED once");
    if (json_member(text, "consumer", &value) != 1) return broke(&client->why, "consumer", "the name of the consumer");
    json_text(value, stream->consumer, sizeof stream->consumer);
    stream->lease_ms = (uint32_t)json_count(text, "lease_ms", UINT32_MAX, 0);
    stream->acks = json_member(text, "acks", &value) != 1 || value.data[0] != 'f';
    stream->state = JOINED;
    return WHERRY_OK;
}

static int take_deliver(struct wherry *client, const struct frame *frame) {
    struct stream *stream = stream_of(client, frame->id);
    struct block *block;
    size_t rows, headers, start;
    int result;
    if (frame->flags & FLAG_ARROW) return broke(&client->why, "flags", "rows, since the client does not read Arrow");
    result = check_deliver(frame->body, frame->size, &rows, &headers, &client->why);
    if (result != WHERRY_OK) return result;
    if (stream == NULL) return broke(&client->why, "id", "that of a stream");
    /* The client takes no more of these: the broker releases what it pushes to a client that has sent GOODBYE. */
    if (rows == 0 || stream->state == CANCELLING || stream->state == ENDED || client->said_goodbye) return WHERRY_OK;
    start = sizeof *block + headers * sizeof(struct wherry_header);
    block = malloc(start + frame->size);
    if (block == NULL) {
        no_memory(&client->why);
        return client->why.result = WHERRY_CLOSED;
    }
    memcpy((uint8_t *)block + start, frame->body, frame->size);
    block->next = NULL;
    block->headers = (struct wherry_header *)(void *)(block + 1);
    block->left = rows;
    block->bytes = start + frame->size;
    block->is_shown = 0;
    begin_rows(&block->rows, (uint8_t *)block + start, frame->size);
    if (stream->last != NULL)
        stream->last->next = block;
    else
        stream->first = block;
    stream->last = block;
    client->held_bytes += block->bytes;
    set_ready(client, stream);
    return WHERRY_OK;
}

static int take_cancel(struct wherry *client, const struct frame *frame) {
    struct stream *stream = stream_of(client, frame->id);
    if (!(frame->flags & FLAG_STREAM)) return broke(&client->why, "flags", "STREAM in a CANCEL of the server");
    if (stream != NULL) end_stream(client, stream, NULL, 0, 0);
    return WHERRY_OK;
}

/* The server drains: drops rows that were not handed out, since the client has no time to work on them. */
static int take_goodbye(struct wherry *client, struct wherry_text text) {
    uint32_t each;
    struct wherry_text any;
    char reason[200];
    if (json_member(text, "reason", &any) < 0) return broke(&client->why, "body", "a document with a reason");
    json_copy(text, "reason", reason, sizeof reason);
    fail(&client->why, WHERRY_LEAVING, "unavailable", "the server has sent GOODBYE: ", reason);
    client->state = LEAVING;
    for (each = 0; each < WHERRY_STREAMS_MAX; each++)
        if (client->streams[each] != NULL && client->streams[each]->acks) drop_rows(client, client->streams[each]);
    return WHERRY_OK;
}

static int take_ping(struct wherry *client, const struct frame *frame) {
    if (filled(&client->out) > client->out_bytes_max + CONTROL_BYTES) {
        fail(&client->why, WHERRY_CLOSED, "protocol", "the server sends PINGs and does not read", NULL);
        return WHERRY_CLOSED;
    }
    return encode_empty(&client->out, PONG, 0, frame->id, &client->why);
}

/* Carries out one frame. */
static int take_frame(struct wherry *client, const struct frame *frame) {
    struct wherry_text text;
    text.data = (const char *)frame->body;
    text.size = frame->size;
    if (client->state == GREETING && frame->kind != HELLO && frame->kind != ERROR && frame->kind != GOODBYE)
        return broke(&client->why, "kind", "HELLO as the first frame");
    switch (frame->kind) {
    case CONFIRM: return take_confirm(client, frame);
    case DELIVER: return take_deliver(client, frame);
    case SETTLED: return take_settled(client, frame);
    case ANSWER: return take_answer(client, frame);
    case ERROR:
    case MOVED: return take_error(client, frame);
    case SUBSCRIBED: return take_subscribed(client, frame, text);
    case CANCEL: return take_cancel(client, frame);
    case HELLO: return take_hello(client, text);
    case GOODBYE: return take_goodbye(client, text);
    case PING: return take_ping(client, frame);
    default: return WHERRY_OK; /* PONG: any frame shows that the server is there */
    }
}

/* Carries out all whole frames that were read. */
static int take_frames(struct wherry *client) {
    struct frame frame;
    int whole = 0;
    while (client->state != CLOSED &&
           (whole = read_frame(client->in.data + client->in.at, filled(&client->in), &frame, &client->why)) == 1) {
        if (take_frame(client, &frame) != WHERRY_OK) return -1;
        consume(&client->in, HEADER_BYTES + frame.size);
    }
    return whole < 0 ? -1 : 0;
}

/* ------------------------------------------------------------------------------------------------------------ turns */

static int closed(const struct wherry *client, struct wherry_error *error) {
    if (error != NULL) *error = client->why;
    return client->why.result;
}

/* Returns whether nothing may be read before the caller collects something. */
static int is_held_up(const struct wherry *client) {
    return client->held_bytes > client->held_bytes_max && !client->said_goodbye;
}

/* The instant of the next PING, or when the server counts as gone. */
static int64_t next_beat(const struct wherry *client) {
    int64_t ping, gone;
    if (client->state == CLOSED || client->heartbeat_ms == 0) return INT64_MAX;
    /* While bytes wait to be written, a PING would wait behind them; while nothing is read, no answer is late. */
    ping = has_to_write(client) ? INT64_MAX : client->sent_at + client->heartbeat_ms / 2;
    gone = is_held_up(client) ? INT64_MAX : client->heard_at + 2 * (int64_t)client->heartbeat_ms + 1;
    return ping < gone ? ping : gone;
}

/* Sends a PING if one is due. If nothing could be read and nothing came for too long, the server is gone. */
static int beat(struct wherry *client, int nothing_came) {
    int64_t now = now_ms();
    char buffer[24];
    if (client->heartbeat_ms == 0) return 0;
    if (nothing_came && now - client->heard_at > 2 * (int64_t)client->heartbeat_ms) {
        fail(&client->why, WHERRY_CLOSED, "unavailable", "the server is gone: milliseconds without a byte: ",
             digits(buffer, now - client->heard_at));
        return -1;
    }
    if (now - client->sent_at >= client->heartbeat_ms / 2 && !has_to_write(client)) {
        if (encode_empty(&client->out, PING, 0, 0, &client->why) != WHERRY_OK) return -1;
        client->sent_at = now;
        return write_now(client) < 0 ? -1 : 0;
    }
    return 0;
}

/* One turn: writes, waits for bytes until a deadline, carries out what came. WHERRY_OK after anything came, or with
 * `only_writes` when all is written. */
static int turn_until(struct wherry *client, int64_t deadline, int only_writes, struct wherry_error *error) {
    char buffer[24];
    for (;;) {
        int64_t beat_at = next_beat(client);
        int came;
        if (client->state == CLOSED) return closed(client, error);
        if (is_held_up(client))
            return full(error, "held_bytes_max", digits(buffer, (int64_t)client->held_bytes),
                        "fewer bytes of deliveries and answers that were not collected");
        came = wait_for_bytes(client, beat_at < deadline ? beat_at : deadline, only_writes);
        if (came == 0 && only_writes && !has_to_write(client)) return WHERRY_OK;
        if (came > 0) {
            ssize_t got = read_now(client);
            if (got >= 0 && take_frames(client) == 0) {
                if (got > 0) return beat(client, 0) < 0 ? (disconnect(client), closed(client, error)) : WHERRY_OK;
                came = 0;
            } else {
                came = -1;
            }
        }
        if (came < 0 || beat(client, came == 0) < 0) {
            disconnect(client);
            return closed(client, error);
        }
        if (until(deadline) == 0) return timed_out(error);
    }
}

static int turn(struct wherry *client, int64_t deadline, struct wherry_error *error) {
    return turn_until(client, deadline, 0, error);
}

/* ---------------------------------------------------------------------------------------------------------- connect */

static char *copy_of(const char *text, size_t size) {
    char *copy = malloc(size + 1);
    if (copy != NULL) {
        memcpy(copy, text, size);
        copy[size] = 0;
    }
    return copy;
}

/* Copies a text that may be NULL; 0 if there is no memory. */
static int copy_text(char **to, const char *text) {
    return text == NULL || (*to = copy_of(text, strlen(text))) != NULL;
}

static int bad_url(const char *url, struct wherry_error *error) {
    return refuse(error, WHERRY_REFUSED, "invalid-input", "url", url,
                  "an address such as http://127.0.0.1:7070 or unix:///run/wherry.sock");
}

/* Reads host and port behind http:// or https://. */
static int parse_place(struct wherry *client, const char *url, const char *at, struct wherry_error *error) {
    const char *end = at + strcspn(at, "/?#"), *host = at, *stop, *sign;
    long port = PORT;
    if (*end != 0 && strcmp(end, "/") != 0) return bad_url(url, error);
    if (*at == '[') {
        host++;
        stop = memchr(at, ']', (size_t)(end - at));
        if (stop == NULL || (stop + 1 != end && stop[1] != ':')) return bad_url(url, error);
        at = stop + 1;
    } else {
        stop = memchr(at, ':', (size_t)(end - at));
        if (stop == NULL) stop = end;
        at = stop;
    }
    if (stop == host || memchr(host, '@', (size_t)(stop - host)) != NULL) return bad_url(url, error);
    if (at < end) {
        for (port = 0, sign = at + 1; sign < end; sign++) {
            if (*sign < '0' || *sign > '9' || port > 65535) return bad_url(url, error);
            port = port * 10 + (*sign - '0');
        }
        if (at + 1 == end || port < 1 || port > 65535) return bad_url(url, error);
    }
    client->host = copy_of(host, (size_t)(stop - host));
    if (client->host == NULL) return no_memory(error);
    {
        char buffer[24];
        join(client->port, sizeof client->port, digits(buffer, port), NULL);
    }
    return WHERRY_OK;
}

static int parse_url(struct wherry *client, const char *url, struct wherry_error *error) {
    struct sockaddr_un address;
    if (strncmp(url, "unix://", 7) == 0) {
        if (url[7] != '/' || url[8] == 0) return bad_url(url, error);
        if (strlen(url + 7) >= sizeof address.sun_path)
            return refuse(error, WHERRY_REFUSED, "invalid-input", "url", url, "a shorter path of a Unix socket");
        return copy_text(&client->path, url + 7) ? WHERRY_OK : no_memory(error);
    }
    if (strncmp(url, "http://", 7) == 0) return parse_place(client, url, url + 7, error);
    if (strncmp(url, "https://", 8) != 0) return bad_url(url, error);
    client->is_tls = 1;
#ifndef WHERRY_TLS
    return refuse(error, WHERRY_REFUSED, "invalid-input", "url", url, "http:// or unix://: built without WHERRY_TLS=1");
#else
    return parse_place(client, url, url + 8, error);
#endif
}

static int set_flags(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? -1 : 0;
}

/* Connects one socket; 0, or the number of the error of the system. */
static int dial(struct wherry *client, int family, const struct sockaddr *address, socklen_t size, int64_t deadline) {
    int number = 0, one = 1;
    socklen_t length = sizeof number;
    client->fd = socket(family, SOCK_STREAM, 0);
    if (client->fd < 0 || set_flags(client->fd) < 0) return errno;
    if (family != AF_UNIX) setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(client->fd, address, size) == 0) return 0;
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    for (;;) {
        struct pollfd socket;
        int count;
        socket.fd = client->fd;
        socket.events = POLLOUT;
        count = poll(&socket, 1, until(deadline));
        if (count > 0) break;
        if (count < 0 && errno != EINTR) return errno;
        if (until(deadline) == 0) return ETIMEDOUT;
    }
    return getsockopt(client->fd, SOL_SOCKET, SO_ERROR, &number, &length) < 0 ? errno : number;
}

static int cannot_reach(struct wherry *client, const char *reason) {
    if (client->path != NULL)
        join(client->why.text, sizeof client->why.text, client->path, " cannot be reached: ", reason, NULL);
    else
        join(client->why.text, sizeof client->why.text, client->host, ":", client->port, " cannot be reached: ", reason,
             NULL);
    return -1;
}

static int dial_unix(struct wherry *client, int64_t deadline) {
    struct sockaddr_un address;
    char buffer[128];
    int number;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, client->path, strlen(client->path));
    number = dial(client, AF_UNIX, (const struct sockaddr *)(const void *)&address, sizeof address, deadline);
    return number == 0 ? 0 : cannot_reach(client, system_text(number, buffer, sizeof buffer));
}

/* Tries the addresses of the host, one after the other. Only the look-up of a name may take longer than
 * the deadline: libc has none with a timeout. */
static int dial_host(struct wherry *client, int64_t deadline) {
    struct addrinfo wanted, *found = NULL, *each;
    char buffer[128];
    int number;
    memset(&wanted, 0, sizeof wanted);
    wanted.ai_socktype = SOCK_STREAM;
    number = getaddrinfo(client->host, client->port, &wanted, &found);
    if (number != 0) return cannot_reach(client, gai_strerror(number));
    for (each = found, number = ETIMEDOUT; each != NULL; each = each->ai_next) {
        number = dial(client, each->ai_family, each->ai_addr, each->ai_addrlen, deadline);
        if (number == 0) break;
        close_socket(client);
    }
    freeaddrinfo(found);
    return number == 0 ? 0 : cannot_reach(client, system_text(number, buffer, sizeof buffer));
}

#ifdef WHERRY_TLS

static int refuse_file(struct wherry *client, const char *field, const char *path) {
    ERR_clear_error();
    refuse(&client->why, WHERRY_REFUSED, "invalid-input", field, path == NULL ? "none" : path,
           "a file of PEM that can be read");
    return -1;
}

static int make_context(struct wherry *client) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    client->tls_context = context;
    if (context == NULL) return tls_lost(client, "TLS failed: ");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    if (client->ca_file == NULL) SSL_CTX_set_default_verify_paths(context);
    else if (SSL_CTX_load_verify_locations(context, client->ca_file, NULL) != 1)
        return refuse_file(client, "ca_file", client->ca_file);
    if (client->cert_file != NULL && SSL_CTX_use_certificate_chain_file(context, client->cert_file) != 1)
        return refuse_file(client, "cert_file", client->cert_file);
    if (client->cert_file != NULL &&
        SSL_CTX_use_PrivateKey_file(context, client->key_file ? client->key_file : client->cert_file,
                                    SSL_FILETYPE_PEM) != 1)
        return refuse_file(client, "key_file", client->key_file);
    return 0;
}

/* Agrees on TLS. The bytes go through memory and our own send(), since that of OpenSSL may raise SIGPIPE. */
static int begin_tls(struct wherry *client, int64_t deadline) {
    uint8_t sealed[16 << 10];
    BIO *reads = BIO_new(BIO_s_mem()), *writes = BIO_new(BIO_s_mem());
    X509_VERIFY_PARAM *verify;
    client->tls = reads == NULL || writes == NULL ? NULL : SSL_new(client->tls_context);
    if (client->tls == NULL) {
        BIO_free(reads);
        BIO_free(writes);
        return lost(client, "no memory is left", 0);
    }
    BIO_set_mem_eof_return(reads, -1); /* without bytes there is no end yet */
    SSL_set_bio(client->tls, reads, writes);
    verify = SSL_get0_param(client->tls);
    if (X509_VERIFY_PARAM_set1_ip_asc(verify, client->host) != 1) { /* the host is a name, not an address */
        SSL_set1_host(client->tls, client->host);
        SSL_set_tlsext_host_name(client->tls, client->host);
    }
    SSL_set_connect_state(client->tls);
    for (;;) {
        int done, came;
        ssize_t got;
        ERR_clear_error();
        done = SSL_do_handshake(client->tls);
        if (done != 1 && SSL_get_error(client->tls, done) != SSL_ERROR_WANT_READ) {
            take_sealed(client);
            send_some(client, &client->sealed); /* the alert, so that the server learns why */
            return tls_lost(client, "TLS failed: ");
        }
        if (done == 1) return write_now(client) < 0 ? -1 : 0;
        came = wait_to_read(client, deadline);
        if (came <= 0) return came == 0 ? lost(client, "no answer to TLS came in time", 0) : -1;
        got = receive_some(client, sealed, sizeof sealed);
        if (got < 0) return -1;
        if (got > 0) BIO_write(reads, sealed, (int)got);
    }
}

#endif

/* Finds a header in a head that is ended by 0: its value, or NULL. The name is in lower case. */
static const char *find_header(const char *head, const char *name) {
    const char *at;
    for (at = strstr(head, "\r\n"); at != NULL; at = strstr(at, "\r\n")) {
        size_t each = 0;
        at += 2;
        while (name[each] != 0 && (at[each] | 0x20) == name[each]) each++;
        if (name[each] != 0 || at[each] != ':') continue;
        at += each + 1;
        return at + strspn(at, " \t");
    }
    return NULL;
}

/* Fills an error with an answer of HTTP that is not 101. */
static int refused_upgrade(struct wherry *client, int status, size_t head) {
    char buffer[24];
    struct wherry_text body;
    body.data = (const char *)client->in.data + client->in.at + head;
    body.size = filled(&client->in) - head;
    if (!read_problem(body, &client->why))
        fail(&client->why, WHERRY_REFUSED, "unavailable",
             "the upgrade to wherry/1 was refused; status of HTTP: ", digits(buffer, status));
    client->why.status = status;
    /* Answers of a busy or closing server: another try may succeed. Other answers would be the same again. */
    client->why.result = status >= 500 || status == 429 || status == 408 ? WHERRY_CLOSED : WHERRY_REFUSED;
    return -1;
}

/* The head of an answer of HTTP, as far as it is needed. */
struct upgrade_head {
    size_t size; /* 0 until it is whole */
    int status;
    size_t body_size; /* SIZE_MAX if it is not announced */
};

/* Finds out whether the head has come. -1 if this is no answer to an upgrade. */
static int read_head(struct wherry *client, struct upgrade_head *head) {
    const char *start = (const char *)client->in.data + client->in.at, *value;
    char text[4096];
    size_t size = filled(&client->in), each;
    if (size >= 7 && memcmp(start, "HTTP/1.", 7) != 0) return lost(client, "the server does not speak HTTP/1", 0);
    if (size >= sizeof text) size = sizeof text - 1;
    for (each = 4; each <= size && head->size == 0; each++)
        if (memcmp(start + each - 4, "\r\n\r\n", 4) == 0) head->size = each;
    if (head->size == 0)
        return size + 1 < sizeof text ? 0 : lost(client, "the answer to the upgrade is too long", 0);
    if (head->size < 12) return lost(client, "the server does not speak HTTP/1", 0);
    memcpy(text, start, head->size);
    text[head->size] = 0;
    head->status = atoi(text + 9);
    value = find_header(text, "content-length");
    head->body_size = value == NULL ? SIZE_MAX : (size_t)strtoul(value, NULL, 10);
    value = find_header(text, "upgrade");
    if (head->status == 101 && (value == NULL || strncmp(value, "wherry/1\r", 9) != 0))
        return lost(client, "the server has switched to another protocol than wherry/1", 0);
    return 0;
}

/* Reads the answer to the upgrade, and the body of a refusal as far as it comes. */
static int read_upgrade(struct wherry *client, int64_t deadline) {
    struct upgrade_head head = {0, 0, 0};
    for (;;) {
        int came;
        if (head.size == 0 && filled(&client->in) > 0 && read_head(client, &head) < 0) return -1;
        if (head.size > 0 && head.status == 101) {
            consume(&client->in, head.size);
            return 0;
        }
        came = head.size > 0 && (filled(&client->in) - head.size >= head.body_size ||
                                 filled(&client->in) > UPGRADE_BYTES_MAX)
                   ? -1
                   : wait_to_read(client, deadline);
        if (came <= 0 || read_now(client) < 0) {
            if (head.size > 0) return refused_upgrade(client, head.status, head.size);
            return came == 0 ? lost(client, "no answer to the upgrade came in time", 0) : -1;
        }
    }
}

/* Requests the upgrade to the native wire. */
static int upgrade(struct wherry *client, int64_t deadline) {
    struct buffer *out = &client->out;
    put_text(out, "GET /v1/wire HTTP/1.1\r\nHost: ");
    if (client->path != NULL) {
        put_text(out, "localhost");
    } else {
        int is_v6 = strchr(client->host, ':') != NULL;
        put_text(out, is_v6 ? "[" : "");
        put_text(out, client->host);
        put_text(out, is_v6 ? "]:" : ":");
        put_text(out, client->port);
    }
    put_text(out, "\r\nConnection: Upgrade\r\nUpgrade: wherry/1\r\n");
    if (client->key != NULL) {
        put_text(out, "Authorization: Bearer ");
        put_text(out, client->key);
        put_text(out, "\r\n");
    }
    put_text(out, "\r\n");
    if (out->failed) {
        out->failed = 0;
        return lost(client, "no memory is left", 0);
    }
    return read_upgrade(client, deadline);
}

/* Greets, joins the streams again, and waits for the HELLO of the server. */
static int greet(struct wherry *client, int64_t deadline) {
    uint32_t each;
    if (encode_hello(&client->out, client->name == NULL ? "wherry.c/" WHERRY_VERSION : client->name, 0,
                     client->heartbeat_wish_ms, &client->why) != WHERRY_OK)
        return -1;
    client->state = GREETING;
    for (each = 0; each < WHERRY_STREAMS_MAX; each++) {
        struct stream *stream = client->streams[each];
        if (stream == NULL || stream->state != WAITING) continue;
        if (encode_subscribe(&client->out, stream->id, stream->terms, stream->terms_size, &client->why) != WHERRY_OK)
            return -1;
        stream->state = JOINING;
        stream->spent = 0;
    }
    if (write_now(client) < 0) return -1;
    while (client->state == GREETING) {
        int came;
        if (take_frames(client) < 0) return -1;
        if (client->state != GREETING) break;
        came = wait_to_read(client, deadline);
        if (came == 0) return lost(client, "no HELLO came in time", 0);
        if (came < 0 || read_now(client) < 0) return -1;
    }
    if (client->state == LEAVING) return -1;
    return take_frames(client) < 0 ? -1 : 0;
}

/* Opens the connection once. */
static int open_once(struct wherry *client, int64_t deadline, struct wherry_error *error) {
    int result;
    client->in.at = client->in.end = client->out.at = client->out.end = 0;
    client->said_goodbye = 0;
    client->heartbeat_ms = 0;
    client->connects++;
    fail(&client->why, WHERRY_CLOSED, "unavailable", "", NULL);
    result = client->path != NULL ? dial_unix(client, deadline) : dial_host(client, deadline);
#ifdef WHERRY_TLS
    if (result == 0 && client->is_tls) result = begin_tls(client, deadline);
#endif
    if (result == 0) result = upgrade(client, deadline);
    if (result == 0) result = greet(client, deadline);
    if (result == 0) {
        client->sent_at = client->heard_at = now_ms();
        return WHERRY_OK;
    }
    result = client->why.result == WHERRY_REFUSED ? WHERRY_REFUSED : WHERRY_CLOSED;
    disconnect(client);
    client->why.result = result;
    return closed(client, error);
}

/* A pause before the next attempt: it grows, and no two clients have the same. */
static void pause_ms(struct wherry *client, uint32_t most, int64_t deadline) {
    int64_t wait = most / 2, left;
    client->random ^= client->random << 13;
    client->random ^= client->random >> 7;
    client->random ^= client->random << 17;
    wait += (int64_t)(client->random % (most / 2 + 1));
    left = deadline == INT64_MAX ? INT64_MAX : deadline - now_ms();
    if (wait > left) wait = left;
    if (wait > 0) poll(NULL, 0, (int)wait);
}

/* Waits for answers, sends GOODBYE, and waits for the end of the connection. */
static void leave(struct wherry *client, int64_t deadline) {
    int64_t half = deadline == INT64_MAX ? INT64_MAX : now_ms() + until(deadline) / 2;
    struct wherry_error error;
    while (client->pending > 0 && client->state != CLOSED && until(half) != 0) {
        int result = turn(client, half, &error);
        if (result != WHERRY_OK && result != WHERRY_TIMEOUT) break;
    }
    if (client->state == CLOSED || encode_goodbye(&client->out, "done", &error) != WHERRY_OK) return;
    client->said_goodbye = 1;
    while (client->state != CLOSED)
        if (turn(client, deadline, &error) != WHERRY_OK) break;
}

int wherry_reconnect(struct wherry *client, int timeout_ms, struct wherry_error *error) {
    int64_t deadline = deadline_of(timeout_ms), leaving = now_ms() + LEAVE_MS;
    uint32_t pause = client->backoff_first_ms;
    clear_error(error);
    if (client->state != CLOSED) {
        leave(client, deadline < leaving ? deadline : leaving);
        if (client->state != CLOSED) disconnect(client);
    }
    for (;;) {
        int result = open_once(client, deadline, error);
        if (result != WHERRY_CLOSED) return result;
        if (until(deadline) == 0) {
            if (error != NULL) error->result = WHERRY_TIMEOUT;
            return WHERRY_TIMEOUT;
        }
        pause_ms(client, pause, deadline);
        pause = pause > client->backoff_cap_ms / 2 ? client->backoff_cap_ms : pause * 2;
    }
}

/* Makes sure that the connection takes requests, by a new one if that was asked for. */
static int ready(struct wherry *client, int64_t deadline, struct wherry_error *error) {
    if (client->state == OPEN) return WHERRY_OK;
    if (!client->reconnect) return closed(client, error);
    return wherry_reconnect(client, until(deadline), error);
}

static void free_client(struct wherry *client) {
    uint32_t each;
    close_socket(client);
    for (each = 0; each < WHERRY_STREAMS_MAX; each++)
        if (client->streams[each] != NULL) free_stream(client, client->streams[each]);
    for (each = 0; client->slots != NULL && each <= client->slot_mask; each++) free(client->slots[each].extra);
    free_blocks(client->shown);
    drop_buffer(&client->in);
    drop_buffer(&client->out);
    free(client->slots);
    free(client->kept);
    free(client->places);
    free(client->host);
    free(client->path);
    free(client->key);
    free(client->name);
    free(client->ca_file);
    free(client->cert_file);
    free(client->key_file);
#ifdef WHERRY_TLS
    SSL_CTX_free(client->tls_context);
#endif
    free(client);
}

static int check_options(const struct wherry_options *options, struct wherry_error *error) {
    const char *sign;
    if (options->heartbeat_ms != 0 && (options->heartbeat_ms < 1000 || options->heartbeat_ms > 600000))
        return refuse_number(error, "heartbeat_ms", options->heartbeat_ms, "0, or 1000 to 600000");
    if (options->in_flight_max > IN_FLIGHT_MAX)
        return refuse_number(error, "in_flight_max", options->in_flight_max, "at most 1048576");
    for (sign = options->key == NULL ? "" : options->key; *sign != 0; sign++)
        if (*sign < '!' || *sign > '~')
            return refuse(error, WHERRY_REFUSED, "invalid-input", "key", "(not shown)",
                          "text of visible ASCII characters");
    return WHERRY_OK;
}

/* Fills a new connection with its address and options. */
static int set_up(struct wherry *client, const char *url, const struct wherry_options *options,
                  struct wherry_error *error) {
    uint32_t slots = 1, wanted = options->in_flight_max == 0 ? 4096 : options->in_flight_max;
    struct timespec now;
    int result = check_options(options, error);
    if (result == WHERRY_OK) result = parse_url(client, url, error);
    if (result != WHERRY_OK) return result;
    while (slots < wanted) slots *= 2;
    client->slots = calloc(slots, sizeof *client->slots);
    client->slot_mask = slots - 1;
    client->reconnect = options->reconnect;
    client->heartbeat_wish_ms = options->heartbeat_ms;
    client->backoff_first_ms = options->backoff_first_ms == 0 ? 100 : options->backoff_first_ms;
    client->backoff_cap_ms = options->backoff_cap_ms == 0 ? 5000 : options->backoff_cap_ms;
    client->out_bytes_max = options->out_bytes_max == 0 ? 8u << 20 : options->out_bytes_max;
    client->held_bytes_max = options->held_bytes_max == 0 ? 64u << 20 : options->held_bytes_max;
    clock_gettime(CLOCK_REALTIME, &now);
    client->random = ((uint64_t)now.tv_nsec << 20 ^ (uint64_t)getpid() << 40 ^ (uintptr_t)client) | 1;
    if (client->slots == NULL || !copy_text(&client->key, options->key) || !copy_text(&client->name, options->name) ||
        !copy_text(&client->ca_file, options->ca_file) || !copy_text(&client->cert_file, options->cert_file) ||
        !copy_text(&client->key_file, options->key_file))
        return no_memory(error);
#ifdef WHERRY_TLS
    if (client->is_tls && make_context(client) < 0) return closed(client, error);
#endif
    return WHERRY_OK;
}

int wherry_connect(struct wherry **client, const char *url, const struct wherry_options *options, int timeout_ms,
                   struct wherry_error *error) {
    static const struct wherry_options defaults = {0};
    struct wherry *made = calloc(1, sizeof *made);
    int result;
    clear_error(error);
    *client = NULL;
    if (made == NULL) return no_memory(error);
    made->fd = -1;
    result = set_up(made, url, options == NULL ? &defaults : options, error);
    if (result == WHERRY_OK) result = open_once(made, deadline_of(timeout_ms), error);
    if (result != WHERRY_OK) {
        free_client(made);
        return result;
    }
    *client = made;
    return WHERRY_OK;
}

void wherry_close(struct wherry *client, int timeout_ms) {
    if (client == NULL) return;
    if (client->state != CLOSED && timeout_ms != 0) leave(client, deadline_of(timeout_ms));
    free_client(client);
}

int wherry_state(const struct wherry *client) {
    return client->state == OPEN      ? WHERRY_STATE_OPEN
           : client->state == LEAVING ? WHERRY_STATE_LEAVING
                                      : WHERRY_STATE_CLOSED;
}

uint32_t wherry_in_flight(const struct wherry *client) { return client->pending; }

int wherry_fd(const struct wherry *client) { return client->fd; }

short wherry_events(const struct wherry *client) {
    int events = is_held_up(client) ? 0 : POLLIN;
    return (short)(has_to_write(client) ? events | POLLOUT : events);
}

int wherry_due_ms(const struct wherry *client) {
    return is_unread(client) && !is_held_up(client) ? 0 : until(next_beat(client));
}

int wherry_process(struct wherry *client, struct wherry_error *error) {
    int done, reads;
    clear_error(error);
    if (client->state == CLOSED) return closed(client, error);
    done = write_now(client) < 0 ? -1 : 0;
    for (reads = 0; done == 0 && reads < PROCESS_READS && !is_held_up(client); reads++) {
        ssize_t got = read_now(client);
        done = got < 0 || take_frames(client) < 0 ? -1 : got == 0;
    }
    if (done < 0 || beat(client, done == 1) < 0 || write_now(client) < 0) {
        disconnect(client);
        return closed(client, error);
    }
    return client->state == LEAVING ? closed(client, error) : WHERRY_OK;
}

/* ========================================================================================================== answers */

/* Gives a collected answer to the caller, and frees its slot. */
static int collect(struct wherry *client, struct slot *slot, struct wherry_answer *answer, struct wherry_error *error) {
    struct wherry_answer ignored;
    int result = WHERRY_OK;
    size_t each;
    if (answer == NULL) answer = &ignored;
    memset(answer, 0, sizeof *answer);
    free(client->kept);
    free(client->places);
    client->kept = NULL;
    client->places = NULL;
    answer->request = slot->id;
    answer->kind = slot->kind;
    if (slot->failure != NONE) {
        result = explain(client, slot, error);
    } else if (slot->kind == WHERRY_PUBLISHED) {
        answer->partition = slot->partition;
        answer->flags = slot->flags;
        answer->messages = slot->rows;
        answer->dead = slot->dead;
        answer->offset = slot->offset;
        if (slot->extra_size > 0) {
            answer->place_count = slot->extra_size / PLACE_BYTES;
            client->places = malloc(answer->place_count * sizeof *client->places);
            if (client->places == NULL) result = no_memory(error);
            for (each = 0; client->places != NULL && each < answer->place_count; each++)
                read_place(slot->extra + each * PLACE_BYTES, client->places + each);
            answer->places = client->places;
        }
    } else if (slot->kind == WHERRY_CALLED) {
        decode_answer(slot->extra, slot->extra_size, &answer->head, &answer->body, &answer->status, NULL);
        if (answer->status >= 400) {
            if (!read_problem(answer->body, error))
                fail(error, WHERRY_REFUSED, "error", "the call has failed, see the status of its answer", NULL);
            if (error != NULL) error->status = answer->status, error->id = slot->id;
            result = WHERRY_REFUSED;
        }
    }
    client->kept = slot->extra;
    slot->extra = NULL;
    client->held_bytes -= slot->extra_size;
    slot->extra_size = 0;
    unlink_answer(client, slot);
    free_slot(client, slot);
    return result;
}

/* Waits until a request is answered, or with 0 until any is. */
static int wait_until(struct wherry *client, uint32_t request, struct wherry_answer *answer, int64_t deadline,
                      struct wherry_error *error) {
    for (;;) {
        struct slot *slot = request == 0 ? NULL : slot_of(client, request);
        int result;
        if (request != 0 && (slot == NULL || slot->is_forgotten))
            return refuse_number(error, "request", request, "a request that is under way");
        if (request == 0 && client->first_answer != 0) slot = client->slots + (client->first_answer - 1);
        if (slot != NULL && slot->state == ANSWERED) return collect(client, slot, answer, error);
        if (client->pending == 0) { /* no answer will come */
            if (client->state != CLOSED && write_now(client) < 0) disconnect(client);
            return timed_out(error);
        }
        result = turn(client, deadline, error);
        if (result != WHERRY_OK && result != WHERRY_CLOSED) return result; /* after a loss all requests are answered */
    }
}

int wherry_wait(struct wherry *client, uint32_t request, struct wherry_answer *answer, int timeout_ms,
                struct wherry_error *error) {
    clear_error(error);
    return wait_until(client, request, answer, deadline_of(timeout_ms), error);
}

void wherry_forget(struct wherry *client, uint32_t request) {
    struct slot *slot = slot_of(client, request);
    if (slot == NULL || slot->is_forgotten) return;
    slot->is_forgotten = 1;
    if (slot->state == PENDING) return;
    unlink_answer(client, slot);
    client->pending++; /* as if it were answered now */
    slot->state = PENDING;
    answered(client, slot);
}

uint64_t wherry_quiet_failures(struct wherry *client, struct wherry_error *error) {
    uint64_t count = client->quiet_failures;
    if (error != NULL) *error = client->quiet_error;
    if (count == 0) clear_error(error);
    client->quiet_failures = 0;
    return count;
}

/* Checks that a new request may be sent, and that its bytes fit. */
static int check_room(struct wherry *client, size_t size, int is_settle, struct wherry_error *error) {
    char buffer[24];
    size_t waiting = filled(&client->out);
    if (client->state != OPEN && !(is_settle && client->state == LEAVING)) return closed(client, error);
    if (waiting > 0 && waiting + size > client->out_bytes_max)
        return full(error, "out_bytes_max", digits(buffer, (int64_t)(waiting + size)),
                    "fewer bytes that the server has not read");
    return WHERRY_OK;
}

/* Writes the gathered bytes if they are many. A loss is reported by the next call. */
static void write_if_much(struct wherry *client) {
    if (filled(&client->out) >= WRITE_BYTES && write_now(client) < 0) disconnect(client);
}

/* Has earlier bytes written, before those of a call that waits anyway: then a frame of any size has room. */
static int wait_for_room(struct wherry *client, int64_t deadline, struct wherry_error *error) {
    int result = ready(client, deadline, error);
    while (result == WHERRY_OK && has_to_write(client)) result = turn_until(client, deadline, 1, error);
    return result;
}

/* Waits for the answer to a request that was just begun. Without a place for the answer, a request that takes too long
 * is forgotten, since the caller does not have its number. */
static int finish(struct wherry *client, int started, uint32_t request, struct wherry_answer *answer, int64_t deadline,
                  struct wherry_error *error) {
    int result;
    if (started != WHERRY_OK) return started;
    result = wait_until(client, request, answer, deadline, error);
    if (result == WHERRY_TIMEOUT || result == WHERRY_FULL) {
        if (answer == NULL) {
            wherry_forget(client, request);
        } else {
            memset(answer, 0, sizeof *answer);
            answer->request = request;
        }
    }
    return result;
}

/* ========================================================================================================== publish */

static int start_publish(struct wherry *client, const struct publish *publish, uint32_t rows, uint32_t *request,
                         struct wherry_error *error) {
    struct slot *slot = NULL;
    size_t size = 0;
    uint32_t id;
    int result;
    clear_error(error);
    *request = 0;
    result = check_publish(publish, &size, error);
    if (result == WHERRY_OK) result = check_room(client, size, 0, error);
    if (result != WHERRY_OK) return result;
    if (publish->options->quiet) {
        /* It needs a number that no request has; its slot stays free. */
        id = next_number(client->last_id);
        while (slot_of(client, id) != NULL) id = next_number(id);
        client->last_id = id;
    } else {
        if ((result = open_slot(client, WHERRY_PUBLISHED, &slot, error)) != WHERRY_OK) return result;
        slot->rows = rows;
        id = slot->id;
    }
    result = encode_publish(&client->out, id, publish, error);
    if (result != WHERRY_OK) {
        if (slot != NULL) free_slot(client, slot);
        return result;
    }
    if (slot != NULL) *request = id;
    write_if_much(client);
    return WHERRY_OK;
}

static const struct wherry_publish_options publish_defaults = {0};

int wherry_publish_start(struct wherry *client, const char *topic, const struct wherry_message *messages, size_t count,
                         const struct wherry_publish_options *options, uint32_t *request, struct wherry_error *error) {
    struct publish publish = {0};
    publish.topic = topic;
    publish.messages = messages;
    publish.count = count;
    publish.options = options == NULL ? &publish_defaults : options;
    return start_publish(client, &publish, (uint32_t)count, request, error);
}

int wherry_publish_arrow_start(struct wherry *client, const char *topic, const void *stream, size_t size, uint32_t rows,
                               const struct wherry_publish_options *options, uint32_t *request,
                               struct wherry_error *error) {
    struct publish publish = {0};
    clear_error(error);
    *request = 0;
    if (stream == NULL || size == 0 || rows == 0)
        return refuse_number(error, rows == 0 ? "rows" : "stream", 0, "an Arrow IPC stream of 1 message or more");
    publish.topic = topic;
    publish.arrow = stream;
    publish.arrow_size = size;
    publish.options = options == NULL ? &publish_defaults : options;
    return start_publish(client, &publish, rows, request, error);
}

int wherry_publish(struct wherry *client, const char *topic, const struct wherry_message *messages, size_t count,
                   const struct wherry_publish_options *options, struct wherry_answer *answer, int timeout_ms,
                   struct wherry_error *error) {
    int64_t deadline = deadline_of(timeout_ms);
    uint32_t request = 0;
    int result;
    clear_error(error);
    if (answer != NULL) memset(answer, 0, sizeof *answer);
    result = wait_for_room(client, deadline, error);
    if (result == WHERRY_OK) result = wherry_publish_start(client, topic, messages, count, options, &request, error);
    if (result == WHERRY_OK && request == 0) return result; /* quiet */
    return finish(client, result, request, answer, deadline, error);
}

/* ========================================================================================================== streams */

static int no_stream(uint32_t stream, struct wherry_error *error) {
    return refuse_number(error, "stream", stream, "a stream that has not ended");
}

/* Makes a stream with a number of its own. */
static int open_stream(struct wherry *client, struct stream **stream, struct wherry_error *error) {
    uint32_t id = next_number(client->last_stream);
    if (client->stream_count >= WHERRY_STREAMS_MAX)
        return full(error, "streams", "257", "at most 256 streams of a connection");
    while (client->streams[id % WHERRY_STREAMS_MAX] != NULL) id = next_number(id);
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL) return no_memory(error);
    (*stream)->id = client->last_stream = id;
    (*stream)->acks = 1;
    client->streams[id % WHERRY_STREAMS_MAX] = *stream;
    client->stream_count++;
    return WHERRY_OK;
}

/* Sends SUBSCRIBE for a new stream. */
static int start_stream(struct wherry *client, const char *topic, const char *subscription,
                        const struct wherry_subscribe_options *options, uint32_t *id, struct wherry_error *error) {
    struct buffer terms = {0};
    struct stream *stream = NULL;
    int result = put_terms(&terms, topic, subscription, options, error);
    if (result == WHERRY_OK) result = check_room(client, filled(&terms), 0, error);
    if (result == WHERRY_OK) result = open_stream(client, &stream, error);
    if (result == WHERRY_OK) {
        stream->terms_size = filled(&terms);
        stream->terms = malloc(stream->terms_size);
        if (stream->terms == NULL) {
            result = no_memory(error);
        } else {
            memcpy(stream->terms, terms.data + terms.at, stream->terms_size);
            result = encode_subscribe(&client->out, stream->id, stream->terms, stream->terms_size, error);
        }
        stream->credit = options->credit;
        stream->refill = options->refill;
        *id = stream->id;
        if (result != WHERRY_OK) free_stream(client, stream);
    }
    drop_buffer(&terms);
    return result;
}

int wherry_subscribe(struct wherry *client, const char *topic, const char *subscription,
                     const struct wherry_subscribe_options *options, uint32_t *stream, int timeout_ms,
                     struct wherry_error *error) {
    static const struct wherry_subscribe_options defaults = {0};
    int64_t deadline = deadline_of(timeout_ms);
    int result;
    clear_error(error);
    *stream = 0;
    result = wait_for_room(client, deadline, error);
    if (result == WHERRY_OK)
        result = start_stream(client, topic, subscription, options == NULL ? &defaults : options, stream, error);
    while (result == WHERRY_OK) {
        struct stream *found = stream_of(client, *stream);
        if (found == NULL) return no_stream(*stream, error);
        if (found->state == JOINED) return WHERRY_OK;
        if (found->state == ENDED) {
            *stream = 0;
            return report_end(client, found, error);
        }
        result = turn(client, deadline, error);
    }
    if (result == WHERRY_CLOSED && stream_of(client, *stream) != NULL) { /* it was never open: it is not opened again */
        free_stream(client, stream_of(client, *stream));
        *stream = 0;
    }
    return result;
}

int wherry_stream_info(const struct wherry *client, uint32_t stream, struct wherry_stream *info,
                       struct wherry_error *error) {
    const struct stream *found = stream_of(client, stream);
    clear_error(error);
    if (found == NULL) return no_stream(stream, error);
    info->is_open = found->state == JOINED;
    info->lease_ms = found->lease_ms;
    info->acks = found->acks;
    info->consumer = found->consumer;
    return WHERRY_OK;
}

int wherry_credit(struct wherry *client, uint32_t stream, uint32_t messages, struct wherry_error *error) {
    struct stream *found = stream_of(client, stream);
    int result;
    clear_error(error);
    if (found == NULL || found->state == ENDED || found->state == CANCELLING) return no_stream(stream, error);
    if (messages == 0) return refuse_number(error, "messages", 0, "a number from 1 to 4294967295");
    result = check_room(client, HEADER_BYTES + 4, 0, error);
    return result == WHERRY_OK ? encode_credit(&client->out, stream, messages, error) : result;
}

/* Counts messages that the client no longer holds, and grants credit again for half of them at a time. */
static void count_spent(struct wherry *client, struct stream *stream, size_t count) {
    if (!stream->refill || stream->state != JOINED || client->state != OPEN) return;
    stream->spent += (uint32_t)count;
    if (stream->spent < (stream->credit + 1) / 2 || stream->spent == 0) return;
    if (encode_credit(&client->out, stream->id, stream->spent, NULL) == WHERRY_OK) stream->spent = 0;
}

/* Hands out rows of the first block of a stream. */
static int hand_out(struct wherry *client, struct stream *stream, struct wherry_delivery *deliveries, size_t room) {
    struct block *block = stream->first;
    size_t count = 0;
    unset_ready(client, stream);
    block->is_shown = 1;
    while (count < room && count < INT_MAX && block->left > 0) {
        struct wherry_delivery *row = deliveries + count;
        next_row(&block->rows, row, block->headers, NULL); /* it was checked when it came */
        block->headers += row->message.header_count;
        row->stream = stream->id;
        row->connection = client->connects;
        block->left--;
        count++;
    }
    if (block->left == 0) {
        stream->first = block->next;
        if (stream->first == NULL) stream->last = NULL;
        client->held_bytes -= block->bytes;
        block->next = client->shown;
        client->shown = block;
    }
    if (stream->first != NULL) set_ready(client, stream); /* behind the other streams */
    if (!stream->acks) count_spent(client, stream, count);
    return (int)count;
}

/* Finds a stream that has ended and has no rows left. */
static struct stream *ended_stream(const struct wherry *client) {
    uint32_t each;
    for (each = 0; client->ended_count > 0 && each < WHERRY_STREAMS_MAX; each++) {
        struct stream *stream = client->streams[each];
        if (stream != NULL && stream->state == ENDED && stream->first == NULL) return stream;
    }
    return NULL;
}

int wherry_receive(struct wherry *client, uint32_t stream, struct wherry_delivery *deliveries, size_t room,
                   int timeout_ms, struct wherry_error *error) {
    int64_t deadline = timeout_ms == 0 ? 0 : deadline_of(timeout_ms);
    clear_error(error);
    free_blocks(client->shown);
    client->shown = NULL;
    if (room == 0) return refuse_number(error, "room", 0, "room for 1 delivery or more");
    for (;;) {
        struct stream *found = stream == 0 ? client->first_ready : stream_of(client, stream);
        int result;
        if (stream != 0 && found == NULL) return no_stream(stream, error);
        if (found != NULL && found->first != NULL) return hand_out(client, found, deliveries, room);
        if (found == NULL) found = ended_stream(client);
        if (found != NULL && found->state == ENDED) return report_end(client, found, error);
        if (client->stream_count == 0) return no_stream(stream, error);
        if (client->state != OPEN && (result = ready(client, deadline, error)) != WHERRY_OK) return result;
        result = turn(client, deadline, error);
        if (result != WHERRY_OK && !(result == WHERRY_CLOSED && client->reconnect)) return result;
    }
}

int wherry_cancel(struct wherry *client, uint32_t stream, int timeout_ms, struct wherry_error *error) {
    int64_t deadline = deadline_of(timeout_ms);
    struct stream *found = stream_of(client, stream);
    int result;
    clear_error(error);
    if (found == NULL || found->state == CANCELLING) return no_stream(stream, error);
    if (found->state == ENDED || found->state == WAITING || client->state == CLOSED) {
        free_stream(client, found);
        return WHERRY_OK;
    }
    result = encode_empty(&client->out, CANCEL, FLAG_STREAM, stream, error);
    if (result != WHERRY_OK) return result;
    drop_rows(client, found);
    found->state = CANCELLING;
    while (result == WHERRY_OK && stream_of(client, stream) != NULL) result = turn(client, deadline, error);
    return result == WHERRY_CLOSED ? WHERRY_OK : result; /* a lost connection ends the stream too */
}

/* Checks that deliveries are of one stream of this connection. */
static int check_deliveries(struct wherry *client, const struct wherry_delivery *deliveries, size_t count,
                            struct wherry_error *error) {
    size_t each;
    if (count < 1 || count > 1000000)
        return refuse_number(error, "count", (int64_t)count, "1 to 1000000 deliveries");
    for (each = 0; each < count; each++) {
        if (deliveries[each].stream != deliveries[0].stream)
            return refuse_number(error, "deliveries", deliveries[each].stream, "deliveries of one stream");
        if (deliveries[each].connection != client->connects) {
            fail(error, WHERRY_REFUSED, "stale-lease", "the lease has ended with an earlier connection", NULL);
            return WHERRY_REFUSED;
        }
    }
    return WHERRY_OK;
}

int wherry_settle_start(struct wherry *client, int verb, const struct wherry_delivery *deliveries, size_t count,
                        const struct wherry_settle_options *options, uint32_t *request, struct wherry_error *error) {
    static const struct wherry_settle_options defaults = {0};
    struct slot *slot = NULL;
    struct stream *stream;
    int result;
    clear_error(error);
    *request = 0;
    if (verb < WHERRY_ACK || verb > WHERRY_RELEASE)
        return refuse_number(error, "verb", verb, "WHERRY_ACK, WHERRY_NACK, WHERRY_DEAD_LETTER or WHERRY_RELEASE");
    result = check_deliveries(client, deliveries, count, error);
    if (result == WHERRY_OK) result = check_room(client, HEADER_BYTES + 8 + 24 * count, 1, error);
    if (result == WHERRY_OK) result = open_slot(client, WHERRY_SETTLED, &slot, error);
    if (result != WHERRY_OK) return result;
    result = encode_settle(&client->out, slot->id, deliveries[0].stream, verb, deliveries, count,
                           options == NULL ? &defaults : options, error);
    if (result != WHERRY_OK) {
        free_slot(client, slot);
        return result;
    }
    *request = slot->id;
    stream = stream_of(client, deliveries[0].stream);
    if (stream != NULL) count_spent(client, stream, count);
    write_if_much(client);
    return WHERRY_OK;
}

static int settle(struct wherry *client, int verb, const struct wherry_delivery *deliveries, size_t count,
                  const struct wherry_settle_options *options, int timeout_ms, struct wherry_error *error) {
    int64_t deadline = deadline_of(timeout_ms);
    uint32_t request;
    int result = wherry_settle_start(client, verb, deliveries, count, options, &request, error);
    return finish(client, result, request, NULL, deadline, error);
}

int wherry_ack(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, int timeout_ms,
               struct wherry_error *error) {
    return settle(client, WHERRY_ACK, deliveries, count, NULL, timeout_ms, error);
}

int wherry_nack(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, int64_t delay_ms,
                const char *why, int timeout_ms, struct wherry_error *error) {
    struct wherry_settle_options options = {0};
    options.delay_ms = delay_ms;
    options.error = why;
    return settle(client, WHERRY_NACK, deliveries, count, &options, timeout_ms, error);
}

int wherry_dead_letter(struct wherry *client, const struct wherry_delivery *deliveries, size_t count,
                       const char *reason, const char *why, int timeout_ms, struct wherry_error *error) {
    struct wherry_settle_options options = {0};
    options.reason = reason;
    options.error = why;
    return settle(client, WHERRY_DEAD_LETTER, deliveries, count, &options, timeout_ms, error);
}

int wherry_release(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, int timeout_ms,
                   struct wherry_error *error) {
    return settle(client, WHERRY_RELEASE, deliveries, count, NULL, timeout_ms, error);
}

int wherry_renew_start(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, uint32_t lease_ms,
                       uint32_t *request, struct wherry_error *error) {
    struct slot *slot = NULL;
    int result;
    clear_error(error);
    *request = 0;
    result = check_deliveries(client, deliveries, count, error);
    if (result == WHERRY_OK) result = check_room(client, HEADER_BYTES + 8 + 8 * count, 1, error);
    if (result == WHERRY_OK) result = open_slot(client, WHERRY_RENEWED, &slot, error);
    if (result != WHERRY_OK) return result;
    result = encode_renew(&client->out, slot->id, deliveries[0].stream, lease_ms, deliveries, count, error);
    if (result != WHERRY_OK)
        free_slot(client, slot);
    else
        *request = slot->id;
    return result;
}

int wherry_renew(struct wherry *client, const struct wherry_delivery *deliveries, size_t count, uint32_t lease_ms,
                 int timeout_ms, struct wherry_error *error) {
    int64_t deadline = deadline_of(timeout_ms);
    uint32_t request;
    int result = wherry_renew_start(client, deliveries, count, lease_ms, &request, error);
    return finish(client, result, request, NULL, deadline, error);
}

/* ============================================================================================================= call */

int wherry_call_start(struct wherry *client, const char *method, const char *path, const struct wherry_header *headers,
                      size_t header_count, const void *body, size_t body_size, uint32_t *request,
                      struct wherry_error *error) {
    struct slot *slot = NULL;
    int result;
    clear_error(error);
    *request = 0;
    if (body_size > WHERRY_FRAME_BYTES_MAX)
        return refuse_number(error, "body", (int64_t)body_size, "at most 33554432 bytes in a frame");
    result = check_room(client, HEADER_BYTES + body_size, 0, error);
    if (result == WHERRY_OK) result = open_slot(client, WHERRY_CALLED, &slot, error);
    if (result != WHERRY_OK) return result;
    result = encode_call(&client->out, slot->id, method, path, headers, header_count, body, body_size, error);
    if (result != WHERRY_OK) {
        free_slot(client, slot);
        return result;
    }
    *request = slot->id;
    write_if_much(client);
    return WHERRY_OK;
}

int wherry_call(struct wherry *client, const char *method, const char *path, const char *body,
                struct wherry_answer *answer, int timeout_ms, struct wherry_error *error) {
    static const struct wherry_header json = {{"content-type", 12}, {"application/json", 16}};
    int64_t deadline = deadline_of(timeout_ms);
    uint32_t request = 0;
    int result;
    clear_error(error);
    if (answer != NULL) memset(answer, 0, sizeof *answer);
    result = wait_for_room(client, deadline, error);
    if (result == WHERRY_OK)
        result = wherry_call_start(client, method, path, &json, body == NULL ? 0 : 1, body,
                                   body == NULL ? 0 : strlen(body), &request, error);
    return finish(client, result, request, answer, deadline, error);
}

int wherry_call_cancel(struct wherry *client, uint32_t request, struct wherry_error *error) {
    struct slot *slot = slot_of(client, request);
    clear_error(error);
    if (slot == NULL || slot->kind != WHERRY_CALLED)
        return refuse_number(error, "request", request, "a call that is under way");
    if (slot->state != PENDING) return WHERRY_OK; /* its answer is already there */
    if (client->state == CLOSED) return closed(client, error);
    return encode_empty(&client->out, CANCEL, 0, request, error);
}
