-- a small history as schema 2 wrote it; never changed
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 1464291413;
BEGIN TRANSACTION;
CREATE TABLE block (id INTEGER PRIMARY KEY, mask INTEGER NOT NULL, last ANY NOT NULL,
                data BLOB NOT NULL) STRICT;
CREATE TABLE chunk (id INTEGER PRIMARY KEY, ticks INTEGER NOT NULL, low_ms INTEGER NOT NULL,
                high_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL, times BLOB NOT NULL,
                masks BLOB NOT NULL, processes BLOB) STRICT;
CREATE TABLE daemon_run (id INTEGER PRIMARY KEY, started_ms INTEGER NOT NULL, stopped_ms INTEGER,
                clean INTEGER NOT NULL, version TEXT NOT NULL, boot_id TEXT NOT NULL) STRICT;
INSERT INTO "daemon_run" VALUES(1,1749945600000,1749945600000,1,'0.1.0','5b1c');
CREATE TABLE event (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, kind TEXT NOT NULL,
                text TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
INSERT INTO "event" VALUES(5,1749945602000,'clock_jump','went back','{"seconds": -1}');
CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "host" VALUES(0,'pc');
CREATE TABLE outbox (id INTEGER PRIMARY KEY, channel TEXT NOT NULL, transition INTEGER,
                payload TEXT NOT NULL, created_ms INTEGER NOT NULL, attempts INTEGER NOT NULL,
                error TEXT NOT NULL, done_ms INTEGER) STRICT;
INSERT INTO "outbox" VALUES(9,'command',8,'{"wall": 1749945600, "mono": 12.5, "resource": "ram", "rule": "forecast", "old": "ok", "new": "warning", "headline": "RAM full in 2 s", "forecast": {"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}}',1749945600000,1,'',1749945600000);
INSERT INTO "outbox" VALUES(10,'ntfy',8,'{"wall": 1749945600, "mono": 12.5, "resource": "ram", "rule": "forecast", "old": "ok", "new": "warning", "headline": "RAM full in 2 s", "forecast": {"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}}',1749945600000,0,'',NULL);
CREATE TABLE rollup_hour (part INTEGER NOT NULL, series INTEGER NOT NULL,
                hour INTEGER NOT NULL, n INTEGER NOT NULL, last ANY NOT NULL,
                below ANY NOT NULL, above ANY NOT NULL, extra ANY NOT NULL,
                PRIMARY KEY (part, series, hour)) STRICT, WITHOUT ROWID;
CREATE TABLE rollup_minute (part INTEGER NOT NULL, series INTEGER NOT NULL,
                minute INTEGER NOT NULL, span INTEGER NOT NULL, n INTEGER NOT NULL, last ANY NOT NULL,
                below ANY NOT NULL, above ANY NOT NULL, extra ANY NOT NULL,
                PRIMARY KEY (part, series, minute)) STRICT, WITHOUT ROWID;
CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_ms INTEGER NOT NULL) STRICT;
INSERT INTO "schema_migration" VALUES(1,'first tables',1795244012743);
INSERT INTO "schema_migration" VALUES(2,'sealed blocks and summaries',1795244012769);
CREATE TABLE series (id INTEGER PRIMARY KEY, host INTEGER NOT NULL, metric TEXT NOT NULL,
                kind TEXT NOT NULL, labels TEXT NOT NULL, divisor INTEGER NOT NULL,
                UNIQUE (host, metric, labels, divisor)) STRICT;
INSERT INTO "series" VALUES(1,0,'made_bytes','gauge','{"kind":"free"}',1);
INSERT INTO "series" VALUES(2,0,'made_ratio','gauge','{}',1000);
INSERT INTO "series" VALUES(3,0,'made_double','gauge','{}',0);
INSERT INTO "series" VALUES(4,0,'made_events','counter','{}',1);
CREATE TABLE span (minute INTEGER PRIMARY KEY) STRICT;
INSERT INTO "span" VALUES(0);
INSERT INTO "span" VALUES(1);
INSERT INTO "span" VALUES(2);
INSERT INTO "span" VALUES(3);
INSERT INTO "span" VALUES(4);
INSERT INTO "span" VALUES(5);
INSERT INTO "span" VALUES(6);
INSERT INTO "span" VALUES(7);
INSERT INTO "span" VALUES(8);
INSERT INTO "span" VALUES(9);
INSERT INTO "span" VALUES(10);
INSERT INTO "span" VALUES(11);
INSERT INTO "span" VALUES(12);
INSERT INTO "span" VALUES(13);
INSERT INTO "span" VALUES(14);
CREATE TABLE tick (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, readings TEXT NOT NULL,
                processes TEXT) STRICT;
INSERT INTO "tick" VALUES(2,1749945600000,'{"1":17179869184,"2":0,"3":0.0,"4":0}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(3,1749945601000,'{"1":17179873280,"2":125,"3":0.3333333333333333,"4":1}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(4,1749945602000,'{"1":17179877376,"2":250,"3":0.6666666666666666,"4":2}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(6,1749945603000,'{"1":17179881472,"2":375,"3":1.0,"4":3}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(7,1749945604000,'{"1":17179885568,"2":500,"3":1.3333333333333333,"4":4}','[[42,123,"python",1048576,0]]');
CREATE TABLE transition (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, mono REAL NOT NULL,
                resource TEXT NOT NULL, rule TEXT NOT NULL, old INTEGER NOT NULL, new INTEGER NOT NULL,
                headline TEXT NOT NULL, forecast TEXT) STRICT;
INSERT INTO "transition" VALUES(8,1749945600000,12.5,'ram','forecast',0,2,'RAM full in 2 s','{"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}');
CREATE INDEX outbox_waiting ON outbox (channel) WHERE done_ms IS NULL;
CREATE VIEW recent AS
                SELECT t.ms / 1000.0 AS time, h.name AS host, s.metric, s.labels,
                    CASE WHEN s.divisor > 1 THEN CAST(j.value AS REAL) / s.divisor
                        ELSE j.value END AS value
                FROM tick t, json_each(t.readings) j JOIN series s ON s.id = CAST(j.key AS INTEGER)
                JOIN host h ON h.id = s.host;
CREATE INDEX chunk_by_time ON chunk (high_ms, low_ms);
CREATE VIEW minute AS
                SELECT r.part + (r.minute + k.minute) * 60 AS time, h.name AS host, s.metric, s.labels, r.n,
                    CASE WHEN s.divisor > 1 THEN CAST((r.last - r.below) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last - r.below) ELSE r.below END AS min, CASE WHEN s.divisor > 1 THEN CAST((r.last + r.above) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last + r.above) ELSE r.above END AS max, CASE WHEN s.divisor > 1 THEN CAST((r.n * r.last + r.extra) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.n * r.last + r.extra) ELSE r.extra END AS sum, CASE WHEN s.divisor > 1 THEN CAST(r.last AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN r.last ELSE r.last END AS last
                FROM rollup_minute r JOIN span k ON k.minute < r.span
                JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
CREATE VIEW hour AS
                SELECT r.part + r.hour * 3600 AS time, h.name AS host, s.metric, s.labels, r.n,
                    CASE WHEN s.divisor > 1 THEN CAST((r.last - r.below) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last - r.below) ELSE r.below END AS min, CASE WHEN s.divisor > 1 THEN CAST((r.last + r.above) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.last + r.above) ELSE r.above END AS max, CASE WHEN s.divisor > 1 THEN CAST((r.n * r.last + r.extra) AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN (r.n * r.last + r.extra) ELSE r.extra END AS sum, CASE WHEN s.divisor > 1 THEN CAST(r.last AS DOUBLE PRECISION) / s.divisor WHEN s.divisor = 1 THEN r.last ELSE r.last END AS last
                FROM rollup_hour r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
COMMIT;
