-- The top speed of each car in every ten seconds, and the two fastest cars of each minute.
-- penstock sql top_speeds.sql --bounded -D cars=jsonl:data/cars -D top_speeds=jsonl:data/speeds -D fastest=jsonl:data/fastest

CREATE STREAM cars (
  car INT NOT NULL, speed INT NOT NULL, distance DOUBLE, time BIGINT NOT NULL,
  WATERMARK FOR time AS time
);

SET 'least' = 0;

CREATE VIEW moving AS SELECT car, speed, time FROM cars WHERE speed >= ${least};

INSERT INTO top_speeds
SELECT car, window_start, MAX(speed) AS top_speed, AVG(speed) AS mean, COUNT(*) AS reports
FROM TABLE(TUMBLE(TABLE moving, DESCRIPTOR(time), INTERVAL '10' SECOND))
GROUP BY car, window_start, window_end;

CREATE TABLE fastest (minute TIMESTAMP, place BIGINT, car INT, top_speed INT, PRIMARY KEY (minute, place));

INSERT INTO fastest
SELECT minute, place, car, top_speed
FROM (
  SELECT minute, car, top_speed,
         ROW_NUMBER() OVER (PARTITION BY minute ORDER BY top_speed DESC, car) AS place
  FROM (
    SELECT car, window_start AS minute, MAX(speed) AS top_speed
    FROM TABLE(TUMBLE(TABLE moving, DESCRIPTOR(time), INTERVAL '1' MINUTE))
    GROUP BY car, window_start, window_end
  ) AS minutes
) AS ranked
WHERE place <= 2;
