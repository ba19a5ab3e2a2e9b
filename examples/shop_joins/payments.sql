-- Orders with the payment that came within an hour, and those without one.
-- penstock sql payments.sql --bounded -D orders=jsonl:data/orders -D payments=jsonl:data/payments -D paid=jsonl:data/paid -D unpaid=jsonl:data/unpaid

CREATE STREAM orders (
  id BIGINT NOT NULL, amount DOUBLE, at BIGINT NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '10' SECOND
);

CREATE STREAM payments (
  order_id BIGINT NOT NULL, paid DOUBLE, at BIGINT NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '10' SECOND
);

CREATE VIEW matched AS
SELECT o.id, o.amount, p.paid, p.at - o.at AS waited_ms
FROM orders AS o
LEFT JOIN payments AS p
  ON o.id = p.order_id AND p.at BETWEEN o.at AND o.at + INTERVAL '1' HOUR;

INSERT INTO paid SELECT id, amount, paid, waited_ms FROM matched WHERE paid IS NOT NULL;

INSERT INTO unpaid SELECT id, amount FROM matched WHERE paid IS NULL;
