CREATE MATERIALIZED VIEW cities AS
SELECT city, count(*) AS orders, sum(amount) AS amount
FROM orders
GROUP BY city;
