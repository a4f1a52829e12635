"""FastStream: its quick start, publisher chains, requests, acks, exchanges, confirms."""

import pytest

from tests.environments import programs
from tests.frameworks.programs import Failed, Program


def test_the_quick_start(faststream, amqp_url, unique, tmp_path):
    command = [str(programs("faststream") / "faststream"), "run", "faststream_users:app"]
    with Program(command, tmp_path / "app.log", {"AMQP_URL": amqp_url, "NAME": unique}) as app:
        app.until_printed("FastStream app started successfully")
        faststream.run("""
            @broker.subscriber(f"{name}-out")
            async def handle(words: str):
                seen.append(words)

            await broker.start()
            await broker.publish({"user": "John", "user_id": 1}, f"{name}-in")
            await until(lambda: seen)
        """)
        assert faststream.run("seen") == ["User: John - 1 registered"]
        app.stop()
        assert app.process.returncode == 0, app.output()


def test_each_publisher_hands_on_to_the_next(faststream):
    found = faststream.run("""
        @broker.subscriber(f"{name}-1")
        @broker.publisher(f"{name}-2")
        async def first(number: int) -> int:
            return number + 1

        @broker.subscriber(f"{name}-2")
        @broker.publisher(f"{name}-3")
        @broker.publisher(f"{name}-4")
        async def second(number: int) -> int:
            return number * 10

        @broker.subscriber(f"{name}-3")
        async def third(number: int):
            seen.append(number)

        @broker.subscriber(f"{name}-4")
        async def fourth(number: int):
            seen.append(number)

        await broker.start()
        for number in range(20):
            await broker.publish(number, f"{name}-1", persist=True)
        await until(lambda: len(seen) == 40)
        sorted(seen)
    """)
    assert found == sorted([(n + 1) * 10 for n in range(20)] * 2)


def test_a_request_gets_its_response(faststream):
    found = faststream.run("""
        @broker.subscriber(name)
        async def double(number: int) -> int:
            return number * 2

        await broker.start()
        answers = await asyncio.gather(*(broker.request(number, name, timeout=30) for number in range(20)))
        [await each.decode() for each in answers]
    """)
    assert found == [n * 2 for n in range(20)]


def test_a_request_without_an_answer_times_out(faststream):
    with pytest.raises(Failed, match="TimeoutError"):
        faststream.run("""
            await broker.start()
            await broker.declare_queue(RabbitQueue(name))
            await broker.request("anybody?", name, timeout=0.5)
        """)


def test_a_response_is_sent_to_the_queue_that_was_named(faststream):
    found = faststream.run("""
        @broker.subscriber(name)
        async def answer(words: str) -> str:
            return words.upper()

        @broker.subscriber(f"{name}-answers")
        async def take(words: str, message: RabbitMessage):
            seen.append([words, message.correlation_id])

        await broker.start()
        await broker.publish("hello", name, reply_to=f"{name}-answers", correlation_id="42")
        await until(lambda: seen)
        seen
    """)
    assert found == [["HELLO", "42"]]


def test_a_message_that_was_nacked_comes_again(faststream):
    found = faststream.run("""
        @broker.subscriber(name, ack_policy=AckPolicy.MANUAL)
        async def handle(words: str, message: RabbitMessage):
            seen.append([words, message.raw_message.redelivered])
            if len(seen) < 3:
                await message.nack()
            else:
                await message.ack()

        await broker.start()
        await broker.publish("hello", name)
        await until(lambda: len(seen) == 3)
        await broker.publish("next", name)
        await until(lambda: len(seen) == 4)
        seen
    """)
    assert found == [["hello", False], ["hello", True], ["hello", True], ["next", False]]


def test_a_message_that_was_rejected_becomes_a_dead_letter(faststream):
    found = faststream.run("""
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}

        @broker.subscriber(RabbitQueue(name, durable=True, arguments=dead), ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def handle(words: str):
            raise ValueError(words)

        @broker.subscriber(f"{name}-dead")
        async def bury(words: str, message: RabbitMessage):
            death = message.headers["x-death"][0]
            seen.append([words, death["queue"] == name, death["reason"], death["count"]])

        await broker.start()
        await broker.publish("broken", name)
        await until(lambda: seen)
        seen
    """)
    assert found == [["broken", True, "rejected", 1]]


def test_a_message_without_an_ack_comes_again_to_the_next(faststream):
    found = faststream.run("""
        @broker.subscriber(RabbitQueue(name, durable=True), ack_policy=AckPolicy.MANUAL)
        async def handle(words: str, message: RabbitMessage):
            seen.append([words, message.raw_message.redelivered])

        await broker.start()
        await broker.publish("hello", name)
        await until(lambda: seen)
        await broker.stop()
        await broker.start()
        await until(lambda: len(seen) == 2)
        seen
    """)
    assert found == [["hello", False], ["hello", True]]


def test_a_direct_exchange_routes_by_the_whole_key(faststream):
    found = faststream.run("""
        exchange = RabbitExchange(name, auto_delete=True)

        @broker.subscriber(RabbitQueue(f"{name}-a", auto_delete=True, routing_key="a"), exchange)
        async def one(words: str):
            seen.append(["a", words])

        @broker.subscriber(RabbitQueue(f"{name}-b", auto_delete=True, routing_key="b"), exchange)
        async def other(words: str):
            seen.append(["b", words])

        await broker.start()
        for key in "abba":
            await broker.publish(f"to {key}", exchange=exchange, routing_key=key)
        await until(lambda: len(seen) == 4)
        sorted(seen)
    """)
    assert found == [["a", "to a"]] * 2 + [["b", "to b"]] * 2


def test_a_topic_exchange_routes_by_pattern(faststream):
    found = faststream.run("""
        exchange = RabbitExchange(name, type=ExchangeType.TOPIC, auto_delete=True)

        @broker.subscriber(RabbitQueue(f"{name}-info", auto_delete=True, routing_key="*.info"), exchange)
        async def info(words: str):
            seen.append(["info", words])

        @broker.subscriber(RabbitQueue(f"{name}-logs", auto_delete=True, routing_key="logs.#"), exchange)
        async def logs(words: str):
            seen.append(["logs", words])

        await broker.start()
        for key in ("logs.info", "logs.error.disk", "web.info"):
            await broker.publish(key, exchange=exchange, routing_key=key)
        await until(lambda: len(seen) == 4)
        sorted(seen)
    """)
    assert found == [["info", "logs.info"], ["info", "web.info"], ["logs", "logs.error.disk"], ["logs", "logs.info"]]


def test_a_headers_exchange_routes_by_all_or_any_of_the_headers(faststream):
    found = faststream.run("""
        exchange = RabbitExchange(name, type=ExchangeType.HEADERS, auto_delete=True)

        def queue(match):
            wanted = {"key": 1, "colour": "red", "x-match": match}
            return RabbitQueue(f"{name}-{match}", auto_delete=True, bind_arguments=wanted)

        @broker.subscriber(queue("all"), exchange)
        async def both(words: str):
            seen.append(["all", words])

        @broker.subscriber(queue("any"), exchange)
        async def one(words: str):
            seen.append(["any", words])

        await broker.start()
        await broker.publish("both", exchange=exchange, headers={"key": 1, "colour": "red"})
        await broker.publish("one", exchange=exchange, headers={"key": 1, "colour": "blue"})
        await until(lambda: len(seen) == 3)
        sorted(seen)
    """)
    assert found == [["all", "both"], ["any", "both"], ["any", "one"]]


def test_a_fanout_exchange_routes_to_all(faststream):
    found = faststream.run("""
        exchange = RabbitExchange(name, type=ExchangeType.FANOUT, auto_delete=True)

        @broker.subscriber(RabbitQueue(f"{name}-a", auto_delete=True), exchange)
        async def one(words: str):
            seen.append(["a", words])

        @broker.subscriber(RabbitQueue(f"{name}-b", auto_delete=True), exchange)
        async def other(words: str):
            seen.append(["b", words])

        await broker.start()
        await broker.publish("hello", exchange=exchange)
        await until(lambda: len(seen) == 2)
        sorted(seen)
    """)
    assert found == [["a", "hello"], ["b", "hello"]]


def test_exchanges_are_bound_to_exchanges(faststream):
    found = faststream.run("""
        outer = RabbitExchange(f"{name}-outer", type=ExchangeType.FANOUT, auto_delete=True)
        inner = RabbitExchange(name, type=ExchangeType.TOPIC, auto_delete=True, bind_to=outer, routing_key="#")

        @broker.subscriber(RabbitQueue(name, auto_delete=True, routing_key="news.*"), inner)
        async def handle(words: str):
            seen.append(words)

        await broker.start()
        await broker.publish("weather", exchange=outer, routing_key="news.weather")
        await until(lambda: seen)
        seen
    """)
    assert found == ["weather"]


def test_each_publish_is_confirmed(faststream):
    found = faststream.run("""
        await broker.start()
        await broker.declare_queue(RabbitQueue(name))
        answers = await asyncio.gather(*(broker.publish(n, name, persist=True) for n in range(50)))
        sorted({type(each).__name__ for each in answers})
    """)
    assert found == ["Ack"]


def test_what_reaches_no_queue_comes_back_to_its_publisher(faststream):
    found = faststream.run("""
        await broker.start()
        answer = await broker.publish("hello?", f"{name}-nowhere", headers={"kept": "yes"})
        [answer.delivery.reply_code, answer.delivery.reply_text, answer.body.decode(), answer.header.properties.headers]
    """)
    assert found[:3] == [312, "NO_ROUTE", "hello?"]
    assert found[3]["kept"] == "yes"


def test_a_message_that_reaches_no_queue_is_dropped_when_it_is_not_mandatory(faststream):
    found = faststream.run("""
        await broker.start()
        answer = await broker.publish("hello?", f"{name}-nowhere", mandatory=False)
        type(answer).__name__
    """)
    assert found == "Ack"


def test_a_full_queue_refuses(faststream):
    faststream.run("""
        await broker.start()
        await broker.declare_queue(RabbitQueue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
        await broker.publish("fits", name)
    """)
    with pytest.raises(Failed, match="DeliveryError"):
        faststream.run("await broker.publish('does not fit', name)")


def test_only_so_many_messages_are_on_their_way(faststream):
    found = faststream.run("""
        @broker.subscriber(name, channel=Channel(prefetch_count=2), ack_policy=AckPolicy.MANUAL)
        async def handle(number: int, message: RabbitMessage):
            seen.append(message)

        def tags():
            return {message.raw_message.delivery_tag: message for message in seen}  # handlers overtake each other

        await broker.start()
        for number in range(5):
            await broker.publish(number, name)
        await until(lambda: len(seen) == 2)
        await asyncio.sleep(0.3)
        before = sorted(tags())
        await tags()[1].ack()
        await until(lambda: len(seen) == 3)
        await tags()[3].ack(multiple=True)
        await until(lambda: len(seen) == 5)
        [before, [[tag, await message.decode()] for tag, message in sorted(tags().items())]]
    """)
    assert found == [[1, 2], [[1, 0], [2, 1], [3, 2], [4, 3], [5, 4]]]


def test_a_queue_that_is_there_otherwise_is_refused(faststream):
    with pytest.raises(Failed, match="PRECONDITION_FAILED"):
        faststream.run("""
            await broker.start()
            await broker.declare_queue(RabbitQueue(name, durable=True))
            other = RabbitBroker(url)
            await other.start()
            await other.declare_queue(RabbitQueue(name, durable=False))
        """)


def test_a_quorum_queue_carries_messages(faststream):
    found = faststream.run("""
        @broker.subscriber(RabbitQueue(name, queue_type=QueueType.QUORUM, durable=True))
        async def handle(words: str):
            seen.append(words)

        await broker.start()
        await broker.publish("hello", name, persist=True)
        await until(lambda: seen)
        seen
    """)
    assert found == ["hello"]
