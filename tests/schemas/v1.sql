-- a small history as schema 1 wrote it; never changed
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 1464291413;
BEGIN TRANSACTION;
CREATE TABLE daemon_run (id INTEGER PRIMARY KEY, started_ms INTEGER NOT NULL, stopped_ms INTEGER,
                clean INTEGER NOT NULL, version TEXT NOT NULL, boot_id TEXT NOT NULL) STRICT;
INSERT INTO "daemon_run" VALUES(1,1749999600000,1749999600000,1,'0.1.0','5b1c');
CREATE TABLE event (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, kind TEXT NOT NULL,
                text TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
INSERT INTO "event" VALUES(5,1749999602000,'clock_jump','went back','{"seconds": -1}');
CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "host" VALUES(0,'pc');
CREATE TABLE outbox (id INTEGER PRIMARY KEY, channel TEXT NOT NULL, transition INTEGER,
                payload TEXT NOT NULL, created_ms INTEGER NOT NULL, attempts INTEGER NOT NULL,
                error TEXT NOT NULL, done_ms INTEGER) STRICT;
INSERT INTO "outbox" VALUES(9,'command',8,'{"wall": 1749999600, "mono": 12.5, "resource": "ram", "rule": "forecast", "old": "ok", "new": "warning", "headline": "RAM full in 2 s", "forecast": {"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}}',1749999600000,1,'',1749999600000);
INSERT INTO "outbox" VALUES(10,'ntfy',8,'{"wall": 1749999600, "mono": 12.5, "resource": "ram", "rule": "forecast", "old": "ok", "new": "warning", "headline": "RAM full in 2 s", "forecast": {"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}}',1749999600000,0,'',NULL);
CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_ms INTEGER NOT NULL) STRICT;
INSERT INTO "schema_migration" VALUES(1,'first tables',1795242627049);
CREATE TABLE series (id INTEGER PRIMARY KEY, host INTEGER NOT NULL, metric TEXT NOT NULL,
                kind TEXT NOT NULL, labels TEXT NOT NULL, divisor INTEGER NOT NULL,
                UNIQUE (host, metric, labels, divisor)) STRICT;
INSERT INTO "series" VALUES(1,0,'made_bytes','gauge','{"kind":"free"}',1);
INSERT INTO "series" VALUES(2,0,'made_ratio','gauge','{}',1000);
INSERT INTO "series" VALUES(3,0,'made_double','gauge','{}',0);
INSERT INTO "series" VALUES(4,0,'made_events','counter','{}',1);
CREATE TABLE tick (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, readings TEXT NOT NULL,
                processes TEXT) STRICT;
INSERT INTO "tick" VALUES(2,1749999600000,'{"1":17179869184,"2":0,"3":0.0,"4":0}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(3,1749999601000,'{"1":17179873280,"2":125,"3":0.3333333333333333,"4":1}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(4,1749999602000,'{"1":17179877376,"2":250,"3":0.6666666666666666,"4":2}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(6,1749999603000,'{"1":17179881472,"2":375,"3":1.0,"4":3}','[[42,123,"python",1048576,0]]');
INSERT INTO "tick" VALUES(7,1749999604000,'{"1":17179885568,"2":500,"3":1.3333333333333333,"4":4}','[[42,123,"python",1048576,0]]');
CREATE TABLE transition (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, mono REAL NOT NULL,
                resource TEXT NOT NULL, rule TEXT NOT NULL, old INTEGER NOT NULL, new INTEGER NOT NULL,
                headline TEXT NOT NULL, forecast TEXT) STRICT;
INSERT INTO "transition" VALUES(8,1749999600000,12.5,'ram','forecast',0,2,'RAM full in 2 s','{"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing"}');
CREATE INDEX outbox_waiting ON outbox (channel) WHERE done_ms IS NULL;
CREATE VIEW recent AS
                SELECT t.ms / 1000.0 AS time, h.name AS host, s.metric, s.labels,
                    CASE WHEN s.divisor > 1 THEN CAST(j.value AS REAL) / s.divisor
                        ELSE j.value END AS value
                FROM tick t, json_each(t.readings) j JOIN series s ON s.id = CAST(j.key AS INTEGER)
                JOIN host h ON h.id = s.host;
COMMIT;
