-- Orders with their payments, with the price of their time, and with the payments of their minute.

CREATE STREAM orders (
  id BIGINT NOT NULL, item STRING NOT NULL, at BIGINT NOT NULL, WATERMARK FOR at AS at - INTERVAL '5' SECOND
);
CREATE STREAM payments (
  id BIGINT NOT NULL, item STRING NOT NULL, paid BIGINT, at BIGINT NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '5' SECOND
);

INSERT INTO near
SELECT o.id, p.id AS payment FROM orders o
LEFT JOIN payments p ON o.item = p.item AND p.at BETWEEN o.at - INTERVAL '2' SECOND AND o.at + INTERVAL '20' SECOND;

INSERT INTO newest
SELECT o.id, p.id AS payment FROM orders o
LEFT JOIN payments FOR SYSTEM_TIME AS OF o.at AS p ON o.item = p.item;

INSERT INTO windows
SELECT o.id, p.id AS payment
FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '10' SECOND)) o
FULL JOIN TABLE(TUMBLE(TABLE payments, DESCRIPTOR(at), INTERVAL '10' SECOND)) p
  ON o.item = p.item AND o.window_start = p.window_start AND o.window_end = p.window_end;
