"""The command line against a broker that `wherry serve` started: what there is, and how it is changed."""

from tests.integration.shell import lines


def test_topics_and_subscriptions_are_changed_and_deleted(wherry):
    wherry("topic", "create", "{t}", "--messages-max", "10", "--keep", "age", "--keep-for", "1h")
    wherry("topic", "create", "{t}", "--messages-max", "10")
    assert "exists and differs" in wherry("topic", "create", "{t}", "--messages-max", "11", code=1).stderr
    wherry("topic", "change", "{t}", "--messages-max", "2", "--overflow", "dead-letter")
    [view] = lines(wherry("topic", "show", "{t}", "--json"))
    assert (view["config"]["messages_max"], view["config"]["overflow"], view["config"]["keep_ms"]) == (
        2,
        "dead-letter",
        3_600_000,
    )
    wherry("topic", "change", "{t}", "--partitions", "3")
    assert lines(wherry("topic", "show", "{t}", "--json"))[0]["config"]["partitions"] == 3
    assert "cannot become 2" in wherry("topic", "change", "{t}", "--partitions", "2", code=1).stderr
    for option in ("--keep", "--persistent", "--transient", "--order"):
        assert f"No such option: {option}" in wherry("topic", "change", "{t}", option, code=2).stderr
    wherry("subscription", "create", "{t}", "w", "--attempts", "3", "--lease", "5m", "--start", "latest")
    wherry("subscription", "change", "{t}", "w", "--retry-first", "2s")
    [view] = lines(wherry("subscription", "show", "{t}", "w", "--json"))
    retry = view["config"]["retry"]
    assert (view["config"]["lease_ms"], retry["attempts"], retry["first_ms"]) == (300_000, 3, 2_000)
    assert [row["name"] for row in lines(wherry("subscription", "list", "{t}", "--json"))] == ["w"]
    wherry("subscription", "delete", "{t}", "w", "--yes")
    assert "give --yes" in wherry("topic", "delete", "{t}", code=2).stderr
    wherry("topic", "delete", "{t}", "--yes")
    assert "no topic named" in wherry("topic", "show", "{t}", code=1).stderr


def test_webhooks_are_set_changed_and_taken_away(wherry):
    def hook():
        return lines(wherry("subscription", "show", "{t}", "w", "--json"))[0]["config"]["webhook"]

    wherry("topic", "create", "{t}")
    place = "http://127.0.0.1:1/hook"
    made = wherry("subscription", "create", "{t}", "w", "--webhook", place, "--webhook-batch", "7")
    assert len(made.stdout.strip()) == 43, "a secret, shown once"
    assert (hook()["url"], hook()["batch"], hook()["secret"]) == (place, 7, "…")
    words = ("subscription", "change", "{t}", "w", "--webhook-secret", "0123456789abcdef")
    done = wherry(*words, "--webhook-timeout", "2s", "--webhook-in-flight", "3", "--webhook-remove-after", "4")
    assert done.stdout == ""
    assert hook() == {
        "url": place,
        "secret": "…",
        "batch": 7,
        "timeout_ms": 2_000,
        "remove_after": 4,
        "in_flight": 3,
    }
    wherry("subscription", "change", "{t}", "w", "--no-webhook")
    assert hook() is None


def test_routes_copy_to_topics(wherry, request):
    name = request.node.name
    wherry("topic", "create", "{t}")
    wherry("topic", "create", "{t}-2")
    wherry("route", "put", "{t}", "--kind", "pattern", "--to", "{t}=order.#", "--to", "{t}-2=*.paid")
    [view] = [row for row in lines(wherry("route", "list", "--json")) if row["name"] == name]
    assert lines(wherry("route", "show", "{t}", "--json")) == [view]
    assert view["bindings"] == [{"topic": name, "match": "order.#"}, {"topic": f"{name}-2", "match": "*.paid"}]
    assert f"{name}-2=*.paid" in wherry("route", "show", "{t}").stdout
    words = ("route", "publish", "{t}", "one", "two", "--header", "a=b", "--json", "--routing-key")
    assert {row["topic"]: row["ids"] for row in lines(wherry(*words, "order.paid"))} == {
        name: ["0-0", "0-1"],
        f"{name}-2": ["0-0", "0-1"],
    }
    assert [row["topic"] for row in lines(wherry(*words, "order.new"))] == [name]
    assert wherry(*words, "elsewhere").stdout == ""
    assert [row["headers"] for row in lines(wherry("browse", "{t}-2", "--json"))] == [{"a": "b"}] * 2
    wherry("route", "put", "{t}", "--kind", "headers", "--to", "{t}=region:eu,size:big", "--any-header")
    [view] = lines(wherry("route", "show", "{t}", "--json"))
    assert view["bindings"] == [{"topic": name, "headers": {"region": "eu", "size": "big"}, "any_header": True}]
    by = ("route", "publish", "{t}", "three", "--header", "region=eu", "--json", "--routing-header")
    assert lines(wherry(*by, "size=big")) == [{"topic": name, "ids": ["0-4"]}]
    assert wherry(*by, "size=small", "--routing-header", "region=us").stdout == ""
    assert "write name=value" in wherry(*by, "size", code=2).stderr
    assert lines(wherry(*by, "Size=big")) == [{"topic": name, "ids": ["0-5"]}]
    assert "give --yes" in wherry("route", "delete", "{t}", code=2).stderr
    wherry("route", "delete", "{t}", "--yes")
    assert "no route named" in wherry("route", "show", "{t}", code=1).stderr


def test_keys_are_made_listed_and_deleted(wherry):
    [made] = lines(wherry("key", "create", "ann", "--right", "publish:jobs*", "--expires", "in 1d", "--json"))
    assert made["token"].startswith(f"wk_{made['id']}_")
    listed = [row for row in lines(wherry("key", "list", "--json")) if row["id"] == made["id"]]
    assert [row["rights"] for row in listed] == [[{"verb": "publish", "topics": "jobs*"}]]
    assert made["token"] not in wherry("key", "show", made["id"]).stdout
    wherry("key", "change", made["id"], "--name", "bob", "--right", "consume", "--never-expires")
    [view] = lines(wherry("key", "show", made["id"], "--json"))
    assert (view["name"], view["rights"], view["expires_ms"]) == ("bob", [{"verb": "consume", "topics": "*"}], None)
    wherry("key", "delete", made["id"], "--yes")
    assert "no key named" in wherry("key", "show", made["id"], code=1).stderr


def test_top_shows_the_figures_of_every_subscription(wherry, request):
    wherry("publish", "--create", "{t}", "one", "two", "three")
    wherry("subscription", "create", "{t}", "workers")
    wherry("consume", "{t}", "workers", "--count", "1")
    rows = lines(wherry("top", "--once", "--every", "0.1", "--json"))
    [row] = [row for row in rows if row["topic"] == request.node.name]
    assert (row["subscription"], row["ready"], row["leased"], row["dead"], row["lag"]) == ("workers", 2, 0, 0, 2)
    assert (row["in"], row["out"]) == (0.0, 0.0)
    assert "workers" in wherry("top", "--once", "--every", "0.1").stdout
