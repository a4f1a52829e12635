/* Feeds the client with bytes that no server would send: `fuzz FILE INPUTS SEED`.
 *
 * FILE has golden frames (name and hex by line). Each input is random bytes, or some of those frames with bits flipped,
 * bytes cut, put in or doubled, lengths right or wrong; it comes whole, byte by byte, or in two parts. The client must
 * take it or close with an error that names the rule. Sanitizers watch. Compiled together with the client. */

#include "wherry.c"

#include <stdio.h>

enum { FRAMES_MAX = 64, INPUT_BYTES_MAX = 1 << 16, REQUESTS = 20 };

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: input %lu: %s\n", __FILE__, __LINE__, input_number, #condition);                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static unsigned long input_number;
static uint64_t chance;
static struct {
    uint8_t *data;
    size_t size;
} frames[FRAMES_MAX];
static size_t frame_count;
static unsigned long taken, faults;

static uint64_t any(uint64_t below) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return below == 0 ? 0 : chance % below;
}

static void read_frames(const char *path) {
    static char line[1 << 16];
    FILE *file = fopen(path, "r");
    int flags, has_body;
    enum ids ids;
    CHECK(file != NULL);
    while (frame_count < FRAMES_MAX && fgets(line, sizeof line, file) != NULL) {
        char *hex = strchr(line, ' ');
        size_t size = 0;
        CHECK(hex != NULL);
        frames[frame_count].data = malloc(strlen(hex));
        for (hex++; hex_value(hex[0]) >= 0; hex += 2)
            frames[frame_count].data[size++] = (uint8_t)(hex_value(hex[0]) << 4 | hex_value(hex[1]));
        frames[frame_count].size = size;
        if (size >= HEADER_BYTES && rule_of(frames[frame_count].data[4], &flags, &ids, &has_body))
            frame_count++;
        else
            free(frames[frame_count].data); /* a client sends it, and any server would be cut off by its kind alone */
    }
    fclose(file);
}

/* A connection in the middle of its life, without a socket: some requests of each kind, and two streams. */
static struct wherry *made_client(void) {
    struct wherry *client = calloc(1, sizeof *client);
    struct slot *slot;
    struct stream *stream;
    int each;
    client->fd = -1;
    client->slot_mask = 63;
    client->slots = calloc(64, sizeof *client->slots);
    client->out_bytes_max = client->held_bytes_max = 1 << 20;
    client->state = any(8) == 0 ? GREETING : OPEN;
    for (each = 0; each < REQUESTS; each++) {
        int kind = each < 8 ? WHERRY_PUBLISHED : each == 8 ? WHERRY_CALLED : WHERRY_SETTLED;
        CHECK(open_slot(client, kind, &slot, NULL) == WHERRY_OK);
        slot->rows = 1 + (uint32_t)any(3);
        slot->is_forgotten = any(6) == 0;
    }
    for (each = 0; each < 2; each++) {
        CHECK(open_stream(client, &stream, NULL) == WHERRY_OK);
        stream->state = each == 0 && any(2) == 0 ? JOINING : JOINED;
        stream->terms = malloc(2);
        stream->refill = 1;
        stream->credit = 4;
    }
    return client;
}

/* Collects all there is, reads every byte of it, and checks that the sums are right. */
static void use_up(struct wherry *client) {
    struct wherry_delivery rows[3];
    struct wherry_answer answer;
    struct wherry_error error;
    volatile uint8_t sum = 0;
    uint32_t request;
    while (client->first_ready != NULL) {
        int count = hand_out(client, client->first_ready, rows, 1 + any(3)), each;
        size_t at;
        CHECK(count > 0);
        for (each = 0; each < count; each++) {
            const uint8_t *payload = rows[each].message.payload;
            for (at = 0; at < rows[each].message.payload_size; at++) sum ^= payload[at];
            for (at = 0; at < rows[each].message.header_count; at++) {
                struct wherry_text value = rows[each].message.headers[at].value;
                if (value.size > 0) sum ^= (uint8_t)value.data[value.size - 1];
            }
        }
        if (any(4) == 0) wherry_settle_start(client, WHERRY_ACK, rows, (size_t)count, NULL, &request, &error);
    }
    while (client->first_answer != 0) {
        struct slot *slot = client->slots + (client->first_answer - 1);
        int result = collect(client, slot, &answer, &error);
        if (result != WHERRY_OK) CHECK(error.code[0] != 0 && memchr(error.text, 0, sizeof error.text) != NULL);
    }
    wherry_quiet_failures(client, &error);
    CHECK(client->held_bytes == 0);
    free_blocks(client->shown);
    client->shown = NULL;
}

static void feed(struct wherry *client, const uint8_t *data, size_t size) {
    if (client->state == CLOSED) return;
    put(&client->in, data, size);
    if (take_frames(client) == 0) {
        taken++;
        return;
    }
    faults++;
    CHECK(client->why.code[0] != 0);
    CHECK(strcmp(client->why.code, "protocol") != 0 || client->why.field[0] != 0);
    disconnect(client);
}

static void run_session(const uint8_t *data, size_t size) {
    struct wherry *client = made_client();
    size_t at, cut;
    switch (any(3)) {
    case 0: feed(client, data, size); break;
    case 1:
        for (at = 0; at < size; at++) feed(client, data + at, 1);
        break;
    default:
        cut = any(size + 1);
        feed(client, data, cut);
        if (any(2) == 0) use_up(client);
        feed(client, data + cut, size - cut);
    }
    if (any(2) == 0) disconnect(client);
    use_up(client);
    free_client(client);
}

/* Decodes a body in memory of its exact size, so that a read beyond it is found. */
static void run_codec(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size == 0 ? 1 : size);
    struct wherry_error error;
    struct wherry_text text, head, body, value;
    size_t rows, headers;
    int status;
    char copy[40];
    memcpy(exact, data, size);
    text.data = (const char *)exact;
    text.size = size;
    check_confirm(exact, size, &error);
    check_deliver(exact, size, &rows, &headers, &error);
    decode_answer(exact, size, &head, &body, &status, &error);
    read_problem(text, &error);
    read_moved(text, &error);
    if (json_member(text, "detail", &value) == 1) json_text(value, copy, sizeof copy);
    is_utf8(exact, size);
    free(exact);
}

static size_t mutate(uint8_t *data, size_t size) {
    uint64_t changes = any(5);
    while (changes-- > 0 && size > 0) {
        size_t at = any(size);
        switch (any(6)) {
        case 0: data[at] ^= (uint8_t)(1 << any(8)); break;
        case 1: data[at] = (uint8_t)any(256); break;
        case 2: data[at] = any(2) == 0 ? 0xFF : 0; break;
        case 3: size = at; break;
        case 4:
            if (size + 8 < INPUT_BYTES_MAX) {
                memmove(data + at + 8, data + at, size - at);
                size += 8;
            }
            break;
        default: memmove(data + at, data + at + 1, size - at - 1), size--;
        }
    }
    return size;
}

/* Makes one input: some frames one after the other. */
static size_t make_input(uint8_t *data) {
    size_t size = 0, each, count = 1 + any(4);
    if (any(16) == 0) {
        size = any(400);
        for (each = 0; each < size; each++) data[each] = (uint8_t)any(256);
        return size;
    }
    while (count-- > 0) {
        uint8_t frame[INPUT_BYTES_MAX];
        const uint8_t *from = frames[each = any(frame_count)].data;
        size_t length = frames[each].size;
        memcpy(frame, from, length);
        if (any(4) > 0 && length > HEADER_BYTES) {
            length = HEADER_BYTES + mutate(frame + HEADER_BYTES, length - HEADER_BYTES);
            store(frame, length - HEADER_BYTES, 4); /* so that the body is looked at */
        } else {
            length = mutate(frame, length);
        }
        if (any(3) == 0 && length > 8) store(frame + 8, any(24), 4);
        if (size + length > INPUT_BYTES_MAX) break;
        memcpy(data + size, frame, length);
        size += length;
    }
    return size;
}

int main(int count, char **given) {
    static uint8_t data[INPUT_BYTES_MAX];
    unsigned long inputs;
    size_t each;
    if (count != 4) return 2;
    read_frames(given[1]);
    inputs = strtoul(given[2], NULL, 10);
    chance = strtoul(given[3], NULL, 10) * 2654435761u + 88172645463325252u;
    for (input_number = 0; input_number < inputs; input_number++) {
        size_t size = make_input(data);
        run_session(data, size);
        run_codec(data + (size > HEADER_BYTES ? HEADER_BYTES : 0), size > HEADER_BYTES ? size - HEADER_BYTES : size);
    }
    for (each = 0; each < frame_count; each++) free(frames[each].data);
    printf("%lu inputs, %lu taken, %lu faults\n", inputs, taken, faults);
    return 0;
}
