-- How often each word occurs so far: the newest count of a word replaces the one before.
-- penstock sql wordcount.sql --bounded -D lines=text:data/text -D counts=jsonl:data/counts

CREATE STREAM lines (text STRING);

CREATE TABLE counts (word STRING, count BIGINT, PRIMARY KEY (word));

INSERT INTO counts
SELECT w.word, COUNT(*) AS count
FROM lines
CROSS JOIN UNNEST(split(regexp_replace(lower(text), '\W+', ' '), ' ')) AS w (word)
WHERE w.word <> ''
GROUP BY w.word;
