-- How many hits each sensor has had, of those whose number is no multiple of three: rows come, change and go.

CREATE STREAM readings (sensor BIGINT NOT NULL, number BIGINT NOT NULL);

CREATE TABLE seen (sensor BIGINT, hits BIGINT, PRIMARY KEY (sensor));

INSERT INTO seen SELECT sensor, COUNT(*) AS hits FROM readings GROUP BY sensor HAVING COUNT(*) % 3 <> 0;
