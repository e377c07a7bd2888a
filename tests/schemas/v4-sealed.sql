-- a small history as schema 4 wrote it; never changed
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 1464291413;
BEGIN TRANSACTION;
CREATE TABLE batch (id INTEGER PRIMARY KEY, batch INTEGER NOT NULL, ms INTEGER NOT NULL,
                offsets TEXT NOT NULL, readings TEXT NOT NULL, processes TEXT) STRICT;
INSERT INTO "batch" VALUES(6,6,1749945599000,'[0]','{}','[[0,[[42,123,"python",1048576,0]]]]');
INSERT INTO "batch" VALUES(13,13,1749945600000,'[0,1000,2000,3000,4000]','{"6":[17179869184,17179873280,17179877376,17179881472,17179885568],"3":[0,125,250,375,500],"4":[0.0,0.3333333333333333,0.6666666666666666,1.0,1.3333333333333333]}','[[0,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[1000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[2000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[3000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[4000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]]]');
INSERT INTO "batch" VALUES(18,18,1749946500000,'[0]','{"5":7}',NULL);
CREATE TABLE block (id INTEGER PRIMARY KEY, mask INTEGER NOT NULL, last ANY NOT NULL,
                data BLOB NOT NULL) STRICT;
INSERT INTO "block" VALUES(458753,0,17180147712,X'0105000000000402001001B0CB9CCD3C8B6926E30C86E92986C90649FA897A09BAF113E3B463B56234A37BA3D423D522BAC255C29443DB4314835B83E4039B0364FD1BFDA47DEB7D64C9D00400');
INSERT INTO "block" VALUES(458754,0,1073741824,X'');
INSERT INTO "block" VALUES(458755,0,500,X'010100017D01FE6367606067006392292632340200');
INSERT INTO "block" VALUES(458756,0,265.0,X'106358BD9A0188428164280C81B96808218B8442579380205A1856AD02A15020190A43602E1A42C822A1D0552420889651FBE8605F43A816C35514D2619568C3ABD0035A5319B2AEC2D90D5B5F2984761DF8AA9530F5148369D682AB5C0EA5AB1E887A6117E75275882A9DC0F08B4B444A41455D4BCFC0C8C4D4DCD2CAC6CEDEC1D1C9D9C5C5D5CDDDC3D3D3CBDBC7D7CFCF3F20203030302828383824242434342C2C2C3C3C22222D2D2D1D043280201304B240201B047240201708F240201F040AC080C1DE81AE0000');
INSERT INTO "block" VALUES(458757,1,775,X'01010001190101636080032E380B00');
CREATE TABLE chunk (id INTEGER PRIMARY KEY, ticks INTEGER NOT NULL, low_ms INTEGER NOT NULL,
                high_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL, times BLOB NOT NULL,
                masks BLOB NOT NULL, processes BLOB) STRICT;
INSERT INTO "chunk" VALUES(7,112,1749942900000,1749943695000,1749943695000,X'01062095B970970102881301016360201B1890A10700',X'78DA6364000246F20872F4000005790017',NULL);
CREATE TABLE daemon_run (id INTEGER PRIMARY KEY, started_ms INTEGER NOT NULL, stopped_ms INTEGER,
                clean INTEGER NOT NULL, version TEXT NOT NULL, boot_id TEXT NOT NULL) STRICT;
INSERT INTO "daemon_run" VALUES(1,1749945600000,1749945600000,1,'0.1.0','5b1c');
CREATE TABLE event (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, kind TEXT NOT NULL,
                text TEXT NOT NULL, fields TEXT NOT NULL) STRICT;
INSERT INTO "event" VALUES(8,1749945600000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(9,1749945601000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(10,1749945602000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(11,1749945603000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(12,1749945604000,'clock_jump','went back','{"seconds": -1}');
CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
INSERT INTO "host" VALUES(0,'pc');
CREATE TABLE learned (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, subject TEXT NOT NULL,
                document TEXT NOT NULL) STRICT;
INSERT INTO "learned" VALUES(17,1749945600000,'GPU-1','{"ceiling_bytes": 8589934592, "ceiling": "seen"}');
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
INSERT INTO "outbox" VALUES(15,'command',14,'{"text": "RAM"}',1749945600000,1,'',1749945600000);
INSERT INTO "outbox" VALUES(16,'ntfy',14,'{"text": "RAM"}',1749945600000,0,'',NULL);
CREATE TABLE rollup_hour (part INTEGER NOT NULL, series INTEGER NOT NULL,
                hour INTEGER NOT NULL, n INTEGER NOT NULL, last ANY NOT NULL,
                below ANY NOT NULL, above ANY NOT NULL, extra ANY NOT NULL,
                PRIMARY KEY (part, series, hour)) STRICT, WITHOUT ROWID;
INSERT INTO "rollup_hour" VALUES(1749859200,1,23,112,17180147712,278528,131072,-8331264);
INSERT INTO "rollup_hour" VALUES(1749859200,2,23,112,1073741824,0,0,0);
INSERT INTO "rollup_hour" VALUES(1749859200,3,23,112,500,500,250,-14125);
INSERT INTO "rollup_hour" VALUES(1749859200,4,23,112,265.0,0.0,265.0,14520.0);
INSERT INTO "rollup_hour" VALUES(1749859200,5,23,22,775,775,0,-8775);
CREATE TABLE rollup_minute (part INTEGER NOT NULL, series INTEGER NOT NULL,
                unit INTEGER NOT NULL, base INTEGER NOT NULL, data TEXT NOT NULL,
                PRIMARY KEY (part, series)) STRICT, WITHOUT ROWID;
INSERT INTO "rollup_minute" VALUES(1749942900,1,4096,17180262400,'[[12,12,12,12,12,null,null,null,null,12,12,12,12,4,null],[0,-1,-74,-17,-32,null,null,null,null,-76,-18,-32,-17,-28,null],[96,94,16,75,43,null,null,null,null,15,77,60,58,47,null],[4,0,66,8,18,null,null,null,null,76,17,24,3,9,null],[-521,-529,271,-343,-149,null,null,null,null,417,-399,-205,-314,-82,null]]');
INSERT INTO "rollup_minute" VALUES(1749942900,2,1,1073741824,'[[12,12,12,12,12,null,null,null,null,12,12,12,12,4,null],[0,0,0,0,0,null,null,null,null,0,0,0,0,0,null],[0,0,0,0,0,null,null,null,null,0,0,0,0,0,null],[0,0,0,0,0,null,null,null,null,0,0,0,0,0,null],[0,0,0,0,0,null,null,null,null,0,0,0,0,0,null]]');
INSERT INTO "rollup_minute" VALUES(1749942900,3,125,750,'[[12,12,12,12,12,null,null,null,null,12,12,12,12,4,null],[0,-3,-6,-2,-5,null,null,null,null,-6,-2,-5,-1,-2,null],[6,3,0,4,1,null,null,null,null,0,4,1,5,3,null],[0,3,6,2,5,null,null,null,null,6,2,5,1,2,null],[-36,-1,34,-8,20,null,null,null,null,34,-8,20,-22,-2,null]]');
INSERT INTO "rollup_minute" VALUES(1749942900,4,0,0,'[[12,12,12,12,12,null,null,null,null,12,12,12,12,4,null],[18.333333333333332,38.333333333333336,58.333333333333336,78.33333333333333,98.33333333333333,null,null,null,null,198.33333333333334,218.33333333333334,238.33333333333334,258.3333333333333,265.0,null],[0.0,20.0,40.0,60.0,80.0,null,null,null,null,180.0,200.0,220.0,240.0,260.0,null],[18.333333333333332,38.333333333333336,58.333333333333336,78.33333333333333,98.33333333333333,null,null,null,null,198.33333333333334,218.33333333333334,238.33333333333334,258.3333333333333,265.0,null],[110.0,350.0,590.0,830.0,1070.0,null,null,null,null,2270.0,2510.0,2750.0,2990.0,1050.0,null]]');
INSERT INTO "rollup_minute" VALUES(1749942900,5,25,50,'[[3,2,3,2,2,null,null,null,null,2,3,2,3,null,null],[0,2,5,7,9,null,null,null,null,21,24,26,29,null,null],[2,1,2,1,1,null,null,null,null,1,2,1,2,null,null],[0,0,0,0,0,null,null,null,null,0,0,0,0,null,null],[-3,-1,-3,-1,-1,null,null,null,null,-1,-3,-1,-3,null,null]]');
CREATE TABLE schema_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_ms INTEGER NOT NULL) STRICT;
INSERT INTO "schema_migration" VALUES(1,'first tables',1795277624062);
INSERT INTO "schema_migration" VALUES(2,'stress runs',1795277624075);
INSERT INTO "schema_migration" VALUES(3,'what was learned',1795277624082);
INSERT INTO "schema_migration" VALUES(4,'what rules saw',1795277624082);
CREATE TABLE series (id INTEGER PRIMARY KEY, host INTEGER NOT NULL, metric TEXT NOT NULL,
                kind TEXT NOT NULL, labels TEXT NOT NULL, divisor INTEGER NOT NULL,
                UNIQUE (host, metric, labels, divisor)) STRICT;
INSERT INTO "series" VALUES(1,0,'made_bytes','gauge','{"kind":"sealed"}',1);
INSERT INTO "series" VALUES(2,0,'made_bytes','gauge','{"kind":"still"}',1);
INSERT INTO "series" VALUES(3,0,'made_ratio','gauge','{}',1000);
INSERT INTO "series" VALUES(4,0,'made_double','gauge','{}',0);
INSERT INTO "series" VALUES(5,0,'made_events','counter','{}',1);
INSERT INTO "series" VALUES(6,0,'made_bytes','gauge','{"kind":"free"}',1);
CREATE TABLE stress_run (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, gpu TEXT NOT NULL,
                verdict TEXT NOT NULL, document TEXT NOT NULL) STRICT;
CREATE TABLE transition (id INTEGER PRIMARY KEY, ms INTEGER NOT NULL, mono REAL NOT NULL,
                resource TEXT NOT NULL, rule TEXT NOT NULL, old INTEGER NOT NULL, new INTEGER NOT NULL,
                message TEXT NOT NULL, forecast TEXT, facts TEXT) STRICT;
INSERT INTO "transition" VALUES(14,1749945600000,12.5,'ram','r',0,2,'{"template": "RAM full in 2 s", "facts": {}}','{"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "reason": "growing", "cause": "", "who_kind": "", "window_seconds": null, "age_seconds": 0.0, "capacity_learned": "", "expected_peak_bytes": null}',NULL);
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
