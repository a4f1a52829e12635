/* The C client over TLS: `tls URL AUTHORITY`. The certificate of the node is verified, and so is its name. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wherry.h"

enum { SOON_MS = 20000, LARGE = 3 << 20 };

static struct wherry_error error;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n  last error: %d %s %s: %s\n", __FILE__, __LINE__, #condition, error.result,   \
                    error.code, error.field, error.text);                                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

int main(int count, char **given) {
    struct wherry_options options = {0};
    struct wherry_subscribe_options terms = {0};
    struct wherry_message message = {0};
    struct wherry_delivery delivery;
    struct wherry *client;
    char *payload = malloc(LARGE);
    uint32_t stream, request;
    int each;
    CHECK(count == 3 && payload != NULL);
    CHECK(wherry_connect(&client, given[1], NULL, SOON_MS, &error) == WHERRY_REFUSED); /* no authority vouches for the node */
    CHECK(strcmp(error.field, "ca_file") == 0);
    options.ca_file = "none.pem";
    CHECK(wherry_connect(&client, given[1], &options, SOON_MS, &error) == WHERRY_REFUSED);
    CHECK(strcmp(error.field, "ca_file") == 0);
    options.ca_file = given[2];
    CHECK(wherry_connect(&client, given[1], &options, SOON_MS, &error) == WHERRY_OK);
    CHECK(wherry_call(client, "PUT", "/v1/topics/jobs", "{\"payload_bytes_max\": 25165824}", NULL, SOON_MS, &error) ==
          WHERRY_OK);
    terms.create = "{}";
    terms.credit = 1000;
    CHECK(wherry_subscribe(client, "jobs", "w", &terms, &stream, SOON_MS, &error) == WHERRY_OK);
    memset(payload, 'x', LARGE);
    for (each = 0; each < 500; each++) { /* many small records at once, and large ones between them */
        message.payload = payload;
        message.payload_size = each % 100 == 99 ? LARGE : 10;
        CHECK(wherry_publish_start(client, "jobs", &message, 1, NULL, &request, &error) == WHERRY_OK);
        if (each % 100 == 99) CHECK(wherry_wait(client, request, NULL, SOON_MS, &error) == WHERRY_OK);
    }
    for (each = 0; each < 500; each++) {
        CHECK(wherry_receive(client, stream, &delivery, 1, SOON_MS, &error) == 1);
        CHECK(delivery.message.payload_size == (each % 100 == 99 ? (size_t)LARGE : 10));
        CHECK(wherry_ack(client, &delivery, 1, SOON_MS, &error) == WHERRY_OK);
    }
    wherry_close(client, SOON_MS);
    free(payload);
    return 0;
}
