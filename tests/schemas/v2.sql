-- a small history as schema 2 wrote it; never changed
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 1464291413;
BEGIN TRANSACTION;
CREATE TABLE batch (id INTEGER PRIMARY KEY, batch INTEGER NOT NULL, ms INTEGER NOT NULL,
                offsets TEXT NOT NULL, readings TEXT NOT NULL, processes TEXT) STRICT;
INSERT INTO "batch" VALUES(11,11,1749946500000,'[0]','{"4":7}',NULL);
CREATE TABLE block (id INTEGER PRIMARY KEY, mask INTEGER NOT NULL, last ANY NOT NULL,
                data BLOB NOT NULL) STRICT;
INSERT INTO "block" VALUES(786433,0,17179885568,X'010500000000040200100101636060600000');
INSERT INTO "block" VALUES(786434,0,500,X'010100017D0101636060600000');
INSERT INTO "block" VALUES(786435,0,1.33333333333333325931e+00,X'1063080D6500425CC4D5A71FBE32D8030100');
CREATE TABLE chunk (id INTEGER PRIMARY KEY, ticks INTEGER NOT NULL, low_ms INTEGER NOT NULL,
                high_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL, times BLOB NOT NULL,
                masks BLOB NOT NULL, processes BLOB) STRICT;
INSERT INTO "chunk" VALUES(12,5,1749945600000,1749945604000,1749945604000,X'010600C8E270970102E8030101636060600000',X'',X'78DA8B8E363437B1B43431353300011D85E86813231D054323631D05A582CA928CFC3C2520D7C0C4C2D4DC4C47C120363616A806AEC7900C3D4664E83126438F09917A6201C0AC3CBD');
CREATE TABLE daemon_run (id INTEGER PRIMARY KEY, started_ms INTEGER NOT NULL, stopped_ms INTEGER,
                clean INTEGER NOT NULL, version TEXT NOT NULL, boot_id TEXT NOT NULL) STRICT;
INSERT INTO "daemon_run" VALUES(1,1749945600000,1749945600000,1,'0.1.0','5b1c');
CREATE TABLE event (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, kind TEXT NOT NULL,
                text TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
INSERT INTO "event" VALUES(2,1749945600000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(3,1749945601000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(4,1749945602000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(5,1749945603000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(6,1749945604000,'clock_jump','went back','{"seconds": -1}');
CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "host" VALUES(0,'pc');
CREATE TABLE minute_of_part (minute INTEGER PRIMARY KEY) STRICT;
INSERT INTO "minute_of_part" VALUES(0);
INSERT INTO "minute_of_part" VALUES(1);
INSERT INTO "minute_of_part" VALUES(2);
INSERT INTO "minute_of_part" VALUES(3);
INSERT INTO "minute_of_part" VALUES(4);
INSERT INTO "minute_of_part" VALUES(5);
INSERT INTO "minute_of_part" VALUES(6);
INSERT INTO "minute_of_part" VALUES(7);
INSERT INTO "minute_of_part" VALUES(8);
INSERT INTO "minute_of_part" VALUES(9);
INSERT INTO "minute_of_part" VALUES(10);
INSERT INTO "minute_of_part" VALUES(11);
INSERT INTO "minute_of_part" VALUES(12);
INSERT INTO "minute_of_part" VALUES(13);
INSERT INTO "minute_of_part" VALUES(14);
CREATE TABLE outbox (id INTEGER PRIMARY KEY, channel TEXT NOT NULL, transition INTEGER,
                payload TEXT NOT NULL, created_ms INTEGER NOT NULL, attempts INTEGER NOT NULL,
                error TEXT NOT NULL, done_ms INTEGER) STRICT;
INSERT INTO "outbox" VALUES(9,'command',8,'{"text": "RAM"}',1749945600000,1,'',1749945600000);
INSERT INTO "outbox" VALUES(10,'ntfy',8,'{"text": "RAM"}',1749945600000,0,'',NULL);
CREATE TABLE rollup_hour (part INTEGER NOT NULL, series INTEGER NOT NULL,
                hour INTEGER NOT NULL, n INTEGER NOT NULL, last ANY NOT NULL,
                below ANY NOT NULL, above ANY NOT NULL, extra ANY NOT NULL,
                PRIMARY KEY (part, series, hour)) STRICT, WITHOUT ROWID;
INSERT INTO "rollup_hour" VALUES(1749945600,1,0,5,17179885568,16384,0,-40960);
INSERT INTO "rollup_hour" VALUES(1749945600,2,0,5,500,500,0,-1250);
INSERT INTO "rollup_hour" VALUES(1749945600,3,0,5,1.33333333333333325931e+00,0.0,1.33333333333333325931e+00,3.33333333333333303727e+00);
CREATE TABLE rollup_minute (part INTEGER NOT NULL, series INTEGER NOT NULL,
                unit INTEGER NOT NULL, base INTEGER NOT NULL, data TEXT NOT NULL,
                PRIMARY KEY (part, series)) STRICT, WITHOUT ROWID;
INSERT INTO "rollup_minute" VALUES(1749945600,1,8192,17179885568,'[[5,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[0,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[2,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[0,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[-5,null,null,null,null,null,null,null,null,null,null,null,null,null,null]]');
INSERT INTO "rollup_minute" VALUES(1749945600,2,250,500,'[[5,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[0,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[2,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[0,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[-5,null,null,null,null,null,null,null,null,null,null,null,null,null,null]]');
INSERT INTO "rollup_minute" VALUES(1749945600,3,0,0,'[[5,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[1.3333333333333333,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[0.0,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[1.3333333333333333,null,null,null,null,null,null,null,null,null,null,null,null,null,null],[3.333333333333333,null,null,null,null,null,null,null,null,null,null,null,null,null,null]]');
CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_ms INTEGER NOT NULL) STRICT;
INSERT INTO "schema_migration" VALUES(1,'first tables',1795247210863);
INSERT INTO "schema_migration" VALUES(2,'stress runs',1795247210863);
CREATE TABLE series (id INTEGER PRIMARY KEY, host INTEGER NOT NULL, metric TEXT NOT NULL,
                kind TEXT NOT NULL, labels TEXT NOT NULL, divisor INTEGER NOT NULL,
                UNIQUE (host, metric, labels, divisor)) STRICT;
INSERT INTO "series" VALUES(1,0,'made_bytes','gauge','{"kind":"free"}',1);
INSERT INTO "series" VALUES(2,0,'made_ratio','gauge','{}',1000);
INSERT INTO "series" VALUES(3,0,'made_double','gauge','{}',0);
INSERT INTO "series" VALUES(4,0,'made_events','counter','{}',1);
CREATE TABLE stress_run (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, gpu TEXT NOT NULL,
                verdict TEXT NOT NULL, document TEXT NOT NULL) STRICT;
CREATE TABLE transition (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, mono REAL NOT NULL,
                resource TEXT NOT NULL, rule TEXT NOT NULL, old INTEGER NOT NULL, new INTEGER NOT NULL,
                message TEXT NOT NULL, forecast TEXT) STRICT;
INSERT INTO "transition" VALUES(8,1749945600000,12.5,'ram','r',0,2,'{"template": "RAM full in 2 s", "facts": {}}','{"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}');
CREATE INDEX outbox_waiting ON outbox (channel) WHERE done_ms IS NULL;
CREATE INDEX chunk_by_time ON chunk (high_ms, low_ms);
CREATE VIEW minute AS
                SELECT r.time, h.name AS host, s.metric, s.labels, r.n, CASE WHEN s.divisor > 1 THEN CAST((r.last - r.below) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last - r.below) ELSE r.below END AS min, CASE WHEN s.divisor > 1 THEN CAST((r.last + r.above) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last + r.above) ELSE r.above END AS max, CASE WHEN s.divisor > 1 THEN CAST((r.n * r.last + r.extra) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.n * r.last + r.extra) ELSE r.extra END AS sum, CASE WHEN s.divisor > 1 THEN CAST(r.last AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN r.last ELSE r.last END AS last
                FROM (
                    SELECT time, series, n,
                        CASE unit WHEN 0 THEN last ELSE base + last * unit END AS last,
                        CASE unit WHEN 0 THEN below ELSE below * unit END AS below,
                        CASE unit WHEN 0 THEN above ELSE above * unit END AS above,
                        CASE unit WHEN 0 THEN extra ELSE extra * unit END AS extra
                    FROM (
                        SELECT m.part + k.minute * 60 AS time, m.series, m.unit, m.base,
                            CASE json_type(m.data, '$[0]') WHEN 'array' THEN json_extract(m.data, '$[0][' || k.minute || ']') ELSE json_extract(m.data, '$[0]') END AS n, CASE json_type(m.data, '$[1]') WHEN 'array' THEN json_extract(m.data, '$[1][' || k.minute || ']') ELSE json_extract(m.data, '$[1]') END AS last, CASE json_type(m.data, '$[2]') WHEN 'array' THEN json_extract(m.data, '$[2][' || k.minute || ']') ELSE json_extract(m.data, '$[2]') END AS below, CASE json_type(m.data, '$[3]') WHEN 'array' THEN json_extract(m.data, '$[3][' || k.minute || ']') ELSE json_extract(m.data, '$[3]') END AS above, CASE json_type(m.data, '$[4]') WHEN 'array' THEN json_extract(m.data, '$[4][' || k.minute || ']') ELSE json_extract(m.data, '$[4]') END AS extra
                        FROM rollup_minute m CROSS JOIN minute_of_part k
                    ) packed
                    WHERE n IS NOT NULL
                ) r
                JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
CREATE VIEW hour AS
                SELECT r.part + r.hour * 3600 AS time, h.name AS host, s.metric, s.labels, r.n,
                    CASE WHEN s.divisor > 1 THEN CAST((r.last - r.below) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last - r.below) ELSE r.below END AS min, CASE WHEN s.divisor > 1 THEN CAST((r.last + r.above) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last + r.above) ELSE r.above END AS max, CASE WHEN s.divisor > 1 THEN CAST((r.n * r.last + r.extra) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.n * r.last + r.extra) ELSE r.extra END AS sum, CASE WHEN s.divisor > 1 THEN CAST(r.last AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN r.last ELSE r.last END AS last
                FROM rollup_hour r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
CREATE VIEW recent AS
                SELECT time, host, metric, labels, CASE WHEN divisor > 1
                    THEN CAST(value AS DOUBLE PRECISION) / divisor ELSE value END AS value
                FROM (
            SELECT (b.ms + o.value) / 1000.0 AS time, h.name AS host, s.metric, s.labels, s.divisor,
                CASE j.type WHEN 'array' THEN json_extract(j.value, '$[' || o.key || ']') ELSE j.value END
                AS value
            FROM batch b, json_each(b.offsets) o, json_each(b.readings) j
            JOIN series s ON s.id = CAST(j.key AS INTEGER) JOIN host h ON h.id = s.host) newest;
COMMIT;
