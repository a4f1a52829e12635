"""Every call of the REST interface, one module for each kind of thing."""

from wherry.wire.http.endpoints import (
    consume,
    dead,
    keys,
    messages,
    publish,
    routes,
    subscriptions,
    system,
    topics,
    transactions,
)
from wherry.wire.http.pages import (
    browser,
    console,
    docs,
    figures,
    metrics,
    schemas,
    sign_in,
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
    console.FILES,
    sign_in.TABLE,
    figures.TABLE,
]
