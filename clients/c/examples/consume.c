/* consume: prints messages as they come, and acks them. Goes on over restarts of the node.
 *
 *     ./consume http://127.0.0.1:7070 jobs workers        (a fourth argument: end after so many messages)
 */

#include <stdio.h>
#include <stdlib.h>

#include "wherry.h"

enum { ROOM = 64, TIMEOUT_MS = 60000 };

static int complain(const struct wherry_error *error) {
    fprintf(stderr, "consume: %s: %s\n", error->code, error->text);
    return 1;
}

int main(int count, char **given) {
    struct wherry_options options = {0};
    struct wherry_subscribe_options terms = {0};
    struct wherry_delivery deliveries[ROOM];
    struct wherry_error error;
    struct wherry *client;
    uint32_t stream;
    long left = count > 4 ? atol(given[4]) : -1;
    if (count < 4) {
        fprintf(stderr, "usage: consume URL TOPIC SUBSCRIPTION [COUNT]\n");
        return 2;
    }
    options.key = getenv("WHERRY_API_KEY");
    options.reconnect = 1;
    terms.credit = ROOM;
    terms.refill = 1; /* as many more as are acked */
    terms.create = "{}";
    if (wherry_connect(&client, given[1], &options, TIMEOUT_MS, &error) != WHERRY_OK) return complain(&error);
    if (wherry_subscribe(client, given[2], given[3], &terms, &stream, TIMEOUT_MS, &error) != WHERRY_OK) {
        wherry_close(client, TIMEOUT_MS);
        return complain(&error);
    }
    while (left != 0) {
        size_t room = left > 0 && left < ROOM ? (size_t)left : ROOM;
        int got = wherry_receive(client, stream, deliveries, room, TIMEOUT_MS, &error), each;
        if (got == WHERRY_TIMEOUT) continue;
        if (got < 0) break;
        for (each = 0; each < got; each++) {
            const struct wherry_message *message = &deliveries[each].message;
            printf("%.*s\n", (int)message->payload_size, (const char *)message->payload);
        }
        fflush(stdout);
        /* A message whose ack fails comes again, here or at another consumer: at least once. */
        if (wherry_ack(client, deliveries, (size_t)got, TIMEOUT_MS, &error) != WHERRY_OK) complain(&error);
        if (left > 0) left -= got;
    }
    if (left != 0) complain(&error);
    wherry_close(client, 2000);
    return left != 0;
}
