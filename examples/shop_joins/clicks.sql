-- Clicks with the price of their campaign when they were made.
-- penstock sql clicks.sql --bounded -D clicks=jsonl:data/clicks -D campaigns=jsonl:data/campaigns -D charged=jsonl:data/charged

CREATE STREAM clicks (
  id BIGINT NOT NULL, campaign STRING NOT NULL, at BIGINT NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '10' SECOND
);

-- A campaign has a new record whenever its price changes.
CREATE STREAM campaigns (
  name STRING NOT NULL, price DOUBLE, since BIGINT NOT NULL,
  WATERMARK FOR since AS since
);

INSERT INTO charged
SELECT c.id, c.campaign, p.price, c.at
FROM clicks AS c
LEFT JOIN campaigns FOR SYSTEM_TIME AS OF c.at AS p ON c.campaign = p.name;
