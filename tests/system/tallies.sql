-- How many hits each page has had, of those from a number on, which is a parameter.

CREATE STREAM hits (page STRING NOT NULL, number BIGINT NOT NULL);

CREATE TABLE tallies (page STRING, hits BIGINT, PRIMARY KEY (page));

SET 'least' = 0;

INSERT INTO tallies SELECT page, COUNT(*) FROM hits WHERE number >= ${least} GROUP BY page;
