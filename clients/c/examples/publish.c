/* publish: sends each line of the standard input as a message, many under way at a time.
 *
 *     seq 1000000 | ./publish http://127.0.0.1:7070 jobs
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wherry.h"

enum { TIMEOUT_MS = 30000 };

static void complain(const struct wherry_error *error) {
    fprintf(stderr, "publish: %s: %s\n", error->code, error->text);
}

/* Collects one answer; 0 if a message was not stored. */
static int collect(struct wherry *client) {
    struct wherry_error error;
    if (wherry_wait(client, 0, NULL, TIMEOUT_MS, &error) == WHERRY_OK) return 1;
    complain(&error);
    return 0;
}

int main(int count, char **given) {
    struct wherry_options options = {0};
    struct wherry_error error;
    struct wherry *client;
    char line[65536], path[1200];
    unsigned long stored = 0, under_way = 0, failed = 0;
    if (count != 3) {
        fprintf(stderr, "usage: publish URL TOPIC < lines\n");
        return 2;
    }
    options.key = getenv("WHERRY_API_KEY");
    if (wherry_connect(&client, given[1], &options, TIMEOUT_MS, &error) != WHERRY_OK) {
        complain(&error);
        return 1;
    }
    snprintf(path, sizeof path, "/v1/topics/%s", given[2]);
    if (wherry_call(client, "PUT", path, "{}", NULL, TIMEOUT_MS, &error) != WHERRY_OK) {
        complain(&error);
        wherry_close(client, TIMEOUT_MS);
        return 1;
    }
    while (failed == 0 && fgets(line, sizeof line, stdin) != NULL) {
        struct wherry_message message = {0};
        uint32_t request;
        int result;
        message.payload = line;
        message.payload_size = strcspn(line, "\n");
        while ((result = wherry_publish_start(client, given[2], &message, 1, NULL, &request, &error)) == WHERRY_FULL) {
            if (!collect(client)) failed++;
            under_way--;
            stored++;
        }
        if (result != WHERRY_OK) {
            complain(&error);
            failed++;
            break;
        }
        under_way++;
    }
    for (; under_way > 0; under_way--) {
        if (collect(client)) stored++;
        else failed++;
    }
    printf("%lu messages are on disk\n", stored);
    wherry_close(client, TIMEOUT_MS);
    return failed > 0;
}
