"""Every call of the REST interface, a module for each thing that people work with."""

from wherry.wire.http.endpoints import (
    browser,
    console,
    consume,
    dead,
    docs,
    figures,
    keys,
    messages,
    metrics,
    publish,
    routes,
    schemas,
    subscriptions,
    system,
    topics,
    transactions,
)

TABLES = [
    topics.TABLE,
    subscriptions.TABLE,
    publish.TABLE,
    consume.TABLE,
    messages.TABLE,
    dead.TABLE,
    routes.TABLE,
    transactions.TABLE,
    keys.TABLE,
    schemas.TABLE,
    system.TABLE,
    metrics.TABLE,
    docs.TABLE,
    browser.TABLE,
    console.TABLE,
    figures.TABLE,
]
