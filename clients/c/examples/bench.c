/* bench: a load that costs little, so that the node is what is measured.
 *
 *     ./bench publish --url unix:///tmp/w.sock --topic load --count 1000000 --size 256 --in-flight 1024 --rows 1
 *     ./bench consume --url unix:///tmp/w.sock --topic load --subscription s --count 1000000
 *
 * Prints one line of JSON: messages a second, the time of the processor that this program took, and how long single
 * publishes took from start to confirm (publish), or from publish to hand-over (consume).
 */

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wherry.h"

enum { TIMEOUT_MS = 60000, ROOM = 1024, PATH_BYTES = 2600 };

struct settings {
    const char *mode, *url, *topic, *subscription, *key;
    unsigned long count, size, in_flight, rows, credit, slots;
    double rate; /* publishes a second; 0: as many as go */
    int is_transient, is_kept;
};

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void stop(const struct wherry_error *error) {
    fprintf(stderr, "bench: %s: %s: %s\n", error->code, error->field, error->text);
    exit(1);
}

static void *memory(size_t count, size_t size) {
    void *found = calloc(count, size);
    if (found == NULL) {
        fprintf(stderr, "bench: no memory is left\n");
        exit(1);
    }
    return found;
}

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double quantile(const double *sorted, size_t count, double part) {
    return count == 0 ? 0 : sorted[(size_t)((double)(count - 1) * part)];
}

/* Prints the figures. `times` are seconds of single messages, as many as were taken. */
static void report(const struct settings *set, double took, double processor, double *times, size_t taken) {
    qsort(times, taken, sizeof *times, by_size);
    printf("{\"mode\": \"%s\", \"messages\": %lu, \"bytes\": %lu, \"seconds\": %.3f, \"messages_per_s\": %.0f, "
           "\"processor_s\": %.3f, \"processor_us_per_message\": %.2f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}\n",
           set->mode, set->count, set->size, took, (double)set->count / took, processor,
           processor * 1e6 / (double)set->count, 1e3 * quantile(times, taken, 0.5), 1e3 * quantile(times, taken, 0.99));
}

static void sleep_until(double instant) {
    double left = instant - seconds(CLOCK_MONOTONIC);
    struct timespec pause;
    if (left <= 0) return;
    pause.tv_sec = (time_t)left;
    pause.tv_nsec = (long)((left - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

/* Publishes, with so many requests under way at most. No two of them have the same number modulo `slots`. */
static void publish(struct wherry *client, const struct settings *set) {
    struct wherry_publish_options options = {0};
    struct wherry_message *rows = memory(set->rows, sizeof *rows);
    struct wherry_error error;
    struct wherry_answer answer;
    char *payload = memory(set->size + 1, 1);
    double *begun = memory(set->slots, sizeof *begun), *times, began, processor;
    size_t taken = 0, under_way = 0, requests = (set->count + set->rows - 1) / set->rows;
    unsigned long sent = 0, started = 0;
    uint32_t request;
    times = memory(requests, sizeof *times);
    memset(payload, 'x', set->size);
    for (sent = 0; sent < set->rows; sent++) {
        rows[sent].payload = payload;
        rows[sent].payload_size = set->size;
    }
    options.persistence = set->is_transient ? WHERRY_TRANSIENT : WHERRY_AS_TOPIC;
    began = seconds(CLOCK_MONOTONIC);
    processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (sent = 0; sent < set->count || under_way > 0;) {
        unsigned long some = set->count - sent < set->rows ? set->count - sent : set->rows;
        int is_paced = set->rate > 0 && sent < set->count;
        double due = began + (is_paced ? (double)started / set->rate : 0);
        if (sent < set->count && under_way < set->in_flight && (!is_paced || due <= seconds(CLOCK_MONOTONIC))) {
            if (wherry_publish_start(client, set->topic, rows, some, &options, &request, &error) != WHERRY_OK)
                stop(&error);
            begun[request % set->slots] = seconds(CLOCK_MONOTONIC);
            sent += some;
            started++;
            under_way++;
            continue;
        }
        if (under_way == 0) {
            sleep_until(due);
            continue;
        }
        {
            int left_ms = is_paced && under_way < set->in_flight ? (int)((due - seconds(CLOCK_MONOTONIC)) * 1e3) + 1
                                                                 : TIMEOUT_MS;
            int result = wherry_wait(client, 0, &answer, left_ms > 0 ? left_ms : 0, &error);
            if (result == WHERRY_TIMEOUT && is_paced) continue;
            if (result != WHERRY_OK) stop(&error);
            times[taken++] = seconds(CLOCK_MONOTONIC) - begun[answer.request % set->slots];
            under_way--;
        }
    }
    report(set, seconds(CLOCK_MONOTONIC) - began, seconds(CLOCK_PROCESS_CPUTIME_ID) - processor, times, taken);
    free(rows);
    free(payload);
    free(begun);
    free(times);
}

/* Consumes and acks. Acks are not waited for one by one: those that fail are counted. */
static void consume(struct wherry *client, const struct settings *set) {
    struct wherry_delivery *deliveries = memory(ROOM, sizeof *deliveries);
    struct wherry_subscribe_options terms = {0};
    struct wherry_error error;
    struct wherry_stream info;
    double *times = memory(set->count, sizeof *times), began = 0, processor = 0;
    size_t taken = 0, each;
    uint32_t stream, request;
    terms.credit = (uint32_t)set->credit;
    terms.refill = 1;
    terms.create = "{}";
    if (wherry_subscribe(client, set->topic, set->subscription, &terms, &stream, TIMEOUT_MS, &error) != WHERRY_OK ||
        wherry_stream_info(client, stream, &info, &error) != WHERRY_OK)
        stop(&error);
    while (taken < set->count) {
        size_t room = set->count - taken < set->rows ? set->count - taken : set->rows;
        int got = wherry_receive(client, stream, deliveries, room > ROOM ? ROOM : room, TIMEOUT_MS, &error), result;
        double now = seconds(CLOCK_REALTIME);
        if (got < 0) stop(&error);
        if (taken == 0) {
            began = seconds(CLOCK_MONOTONIC);
            processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
        }
        for (each = 0; each < (size_t)got; each++) times[taken++] = now - (double)deliveries[each].published_us / 1e6;
        if (!info.acks) continue;
        while ((result = wherry_settle_start(client, WHERRY_ACK, deliveries, (size_t)got, NULL, &request, &error)) ==
               WHERRY_FULL)
            if (wherry_process(client, &error) != WHERRY_OK) stop(&error);
        if (result != WHERRY_OK) stop(&error);
        wherry_forget(client, request);
    }
    while (wherry_in_flight(client) > 0)
        if (wherry_wait(client, 0, NULL, 1000, &error) == WHERRY_CLOSED) stop(&error);
    if (wherry_quiet_failures(client, &error) > 0) stop(&error);
    report(set, seconds(CLOCK_MONOTONIC) - began, seconds(CLOCK_PROCESS_CPUTIME_ID) - processor, times, taken);
    free(deliveries);
    free(times);
}

static void usage(void) {
    fprintf(stderr,
            "usage: bench publish|consume --url URL --topic TOPIC [--subscription NAME] [--count 100000] [--size 256]\n"
            "       [--in-flight 1024] [--rows 1] [--credit 1000] [--rate 0] [--transient] [--keep]\n"
            "  --rows       messages in a frame: of a publish, or of an ack at most\n"
            "  --rate       publishes a second; 0: as many as go\n"
            "  --keep       leave the topic as it is: else it is created if it is missing\n");
    exit(2);
}

static void read_settings(struct settings *set, int count, char **given) {
    int each;
    if (count < 2) usage();
    memset(set, 0, sizeof *set);
    set->mode = given[1];
    set->subscription = "bench";
    set->count = 100000;
    set->size = 256;
    set->in_flight = 1024;
    set->rows = 1;
    set->credit = 1000;
    set->key = getenv("WHERRY_API_KEY");
    for (each = 2; each < count; each++) {
        const char *name = given[each], *value = each + 1 < count ? given[each + 1] : "";
        if (strcmp(name, "--transient") == 0) set->is_transient = 1;
        else if (strcmp(name, "--keep") == 0) set->is_kept = 1;
        else if (++each >= count) usage();
        else if (strcmp(name, "--url") == 0) set->url = value;
        else if (strcmp(name, "--topic") == 0) set->topic = value;
        else if (strcmp(name, "--subscription") == 0) set->subscription = value;
        else if (strcmp(name, "--count") == 0) set->count = strtoul(value, NULL, 10);
        else if (strcmp(name, "--size") == 0) set->size = strtoul(value, NULL, 10);
        else if (strcmp(name, "--in-flight") == 0) set->in_flight = strtoul(value, NULL, 10);
        else if (strcmp(name, "--rows") == 0) set->rows = strtoul(value, NULL, 10);
        else if (strcmp(name, "--credit") == 0) set->credit = strtoul(value, NULL, 10);
        else if (strcmp(name, "--rate") == 0) set->rate = strtod(value, NULL);
        else usage();
    }
    if (set->url == NULL || set->topic == NULL || set->count < 1 || set->in_flight < 1 || set->rows < 1 ||
        set->rows > WHERRY_ROWS_MAX || set->in_flight > 1 << 20 || set->credit < 1 || set->size > 24 << 20 ||
        (strcmp(set->mode, "publish") != 0 && strcmp(set->mode, "consume") != 0))
        usage();
    for (set->slots = 16384; set->slots < set->in_flight;) set->slots *= 2; /* acks that are forgotten need some too */
}

int main(int count, char **given) {
    struct settings set;
    struct wherry_options options = {0};
    struct wherry_error error;
    struct wherry *client;
    char path[PATH_BYTES];
    read_settings(&set, count, given);
    options.key = set.key;
    options.name = "bench";
    options.in_flight_max = (uint32_t)set.slots;
    options.out_bytes_max = 64u << 20;
    if (wherry_connect(&client, set.url, &options, TIMEOUT_MS, &error) != WHERRY_OK) stop(&error);
    snprintf(path, sizeof path, "/v1/topics/%s", set.topic);
    if (!set.is_kept && wherry_call(client, "PUT", path, "{\"payload_bytes_max\": 25165824}", NULL, TIMEOUT_MS,
                                    &error) != WHERRY_OK && strcmp(error.code, "already-exists") != 0)
        stop(&error);
    if (set.mode[0] == 'p') publish(client, &set);
    else consume(client, &set);
    wherry_close(client, TIMEOUT_MS);
    return 0;
}
