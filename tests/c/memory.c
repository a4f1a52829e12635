/* Memory that is missing: `memory URL TOPIC` runs a short session again and again, and each time another allocation of
 * the client fails. Every call must return a result, and nothing may leak. Prints how many allocations were failed. */

#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>

static long until_failure;

static int fails(void) { return until_failure > 0 && --until_failure == 0; }
static void *failing_malloc(size_t size) { return fails() ? NULL : malloc(size); }
static void *failing_calloc(size_t count, size_t size) { return fails() ? NULL : calloc(count, size); }

#define malloc failing_malloc
#define calloc failing_calloc
#include "wherry.c"
#undef malloc
#undef calloc

#include <stdio.h>

enum { SOON_MS = 10000 };

/* Runs until a call fails; returns its result, which must be one that the error explains. */
static int session(const char *url, const char *topic) {
    struct wherry_subscribe_options terms = {0};
    struct wherry_message messages[3];
    struct wherry_header header = {{"a", 1}, {"1", 1}};
    struct wherry_delivery deliveries[3];
    struct wherry_error error;
    struct wherry_answer answer;
    struct wherry *client;
    uint32_t stream, request;
    char path[100];
    int result = wherry_connect(&client, url, NULL, SOON_MS, &error), got = 0;
    if (result != WHERRY_OK) return result;
    memset(messages, 0, sizeof messages);
    messages[0].fields = messages[2].fields = WHERRY_HEADERS;
    messages[0].headers = messages[2].headers = &header;
    messages[0].header_count = messages[2].header_count = 1;
    join(path, sizeof path, "/v1/topics/", topic, NULL);
    result = wherry_call(client, "PUT", path, "{\"partitions\": 3}", &answer, SOON_MS, &error);
    terms.create = "{}";
    terms.credit = 100;
    terms.refill = 1;
    if (result == WHERRY_OK) result = wherry_subscribe(client, topic, "w", &terms, &stream, SOON_MS, &error);
    if (result == WHERRY_OK) result = wherry_publish(client, topic, messages, 3, NULL, &answer, SOON_MS, &error);
    if (result == WHERRY_OK) {
        got = wherry_receive(client, stream, deliveries, 3, SOON_MS, &error);
        result = got < 0 ? got : wherry_nack(client, deliveries, (size_t)got, 3600000, "late", SOON_MS, &error);
    }
    if (result == WHERRY_OK) result = wherry_publish_start(client, "none", messages, 1, NULL, &request, &error);
    if (result == WHERRY_OK && (result = wherry_wait(client, request, NULL, SOON_MS, &error)) == WHERRY_REFUSED)
        result = WHERRY_OK;
    if (result == WHERRY_OK) result = wherry_reconnect(client, SOON_MS, &error);
    if (result == WHERRY_OK) result = wherry_cancel(client, stream, SOON_MS, &error);
    wherry_close(client, 500);
    return result;
}

int main(int count, char **given) {
    long each;
    int result = -1;
    if (count != 3) return 2;
    for (each = 1; each < 500; each++) {
        until_failure = each;
        result = session(given[1], given[2]);
        if (until_failure > 0) break; /* it was over before so many allocations */
        if (result != WHERRY_OK && result != WHERRY_NO_MEMORY && result != WHERRY_CLOSED) {
            fprintf(stderr, "allocation %ld: result %d\n", each, result);
            return 1;
        }
    }
    if (result != WHERRY_OK) return 1;
    printf("%ld\n", each - 1);
    return 0;
}
