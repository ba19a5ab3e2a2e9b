-- Sensors whose mean of a minute is above a limit, which commands change while the job runs.
-- Sources and sinks are given when it is started; see README.md.

-- A stream has a name, and is bound to a URI with -D NAME=URI. Records may be five seconds late.
CREATE STREAM readings (
  sensor STRING NOT NULL, value DOUBLE NOT NULL, at TIMESTAMP NOT NULL,
  WATERMARK FOR at AS at - INTERVAL '5' SECOND
);

CREATE TABLE alerts (sensor STRING, minute TIMESTAMP, mean DOUBLE, records BIGINT);

-- A parameter: its type and its first value.
SET 'highest' = 80.0;

CREATE VIEW minutes AS
SELECT sensor, window_start AS minute, AVG(value) AS mean, COUNT(*) AS records
FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(at), INTERVAL '1' MINUTE))
GROUP BY sensor, window_start, window_end;

INSERT INTO alerts SELECT sensor, minute, mean, records FROM minutes WHERE mean > ${highest};
