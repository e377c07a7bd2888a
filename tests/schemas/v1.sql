-- a small history as schema 1 wrote it; never changed
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA application_id = 1464291413;
BEGIN TRANSACTION;
CREATE TABLE batch (
	id INTEGER NOT NULL,
	batch INTEGER NOT NULL,
	ms INTEGER NOT NULL,
	offsets TEXT NOT NULL,
	readings TEXT NOT NULL,
	processes TEXT,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "batch" VALUES(6,6,1749945599000,'[0]','{}','[[0,[[42,123,"python",1048576,0]]]]');
INSERT INTO "batch" VALUES(13,13,1749945600000,'[0,1000,2000,3000,4000]','{"5":[17179869184,17179873280,17179877376,17179881472,17179885568],"3":[0,125,250,375,500]}','[[0,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[1000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[2000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[3000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]],[4000,[[42,123,"python",1048576,0],["GPU-1",42,"python",1048576]]]]');
INSERT INTO "batch" VALUES(18,18,1749946500000,'[0]','{"4":7}',NULL);
CREATE TABLE block (
	id INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "block" VALUES(7,X'04000100020003000400550000005C000000760000008A00000001000500400400040105000000000402001001B0CB9CCD3C8B6926E30C86E92986C90649FA897A09BAF113E3B463B56234A37BA3D423D522BAC255C29443DB4314835B83E4039B0364FD1BFDA47DEB7D64C9D0040001000400000040010002F401010100017D01FE6367606067006392292632340200010202070301010001190101636080032E380B00');
CREATE TABLE chunk (
	id INTEGER NOT NULL,
	ticks INTEGER NOT NULL,
	low_ms INTEGER NOT NULL,
	high_ms INTEGER NOT NULL,
	last_ms INTEGER NOT NULL,
	times BLOB NOT NULL,
	masks BLOB NOT NULL,
	processes BLOB,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "chunk" VALUES(7,112,1749942900000,1749943695000,1749943695000,X'01062095B970970102881301016360201B1890A10700',X'78DA6364000246F20872F4000005790017',NULL);
CREATE TABLE daemon_run (
	id INTEGER NOT NULL,
	started_ms INTEGER NOT NULL,
	stopped_ms INTEGER,
	clean INTEGER NOT NULL,
	version TEXT NOT NULL,
	boot_id TEXT NOT NULL,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "daemon_run" VALUES(1,1749945600000,1749945600000,1,'0.1.0','5b1c');
CREATE TABLE event (
	id INTEGER NOT NULL,
	ms INTEGER NOT NULL,
	kind TEXT NOT NULL,
	text TEXT NOT NULL,
	fields TEXT NOT NULL,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "event" VALUES(8,1749945600000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(9,1749945601000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(10,1749945602000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(11,1749945603000,'clock_jump','went back','{"seconds": -1}');
INSERT INTO "event" VALUES(12,1749945604000,'clock_jump','went back','{"seconds": -1}');
CREATE TABLE host (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (name)
)
 STRICT

;
INSERT INTO "host" VALUES(0,'pc');
CREATE TABLE learned (
	id INTEGER NOT NULL,
	ms INTEGER NOT NULL,
	subject TEXT NOT NULL,
	document TEXT NOT NULL,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "learned" VALUES(17,1749945600000,'GPU-1','{"ceiling_bytes": 8589934592, "ceiling": "seen"}');
CREATE TABLE outbox (
	id INTEGER NOT NULL,
	channel TEXT NOT NULL,
	transition INTEGER,
	payload TEXT NOT NULL,
	created_ms INTEGER NOT NULL,
	attempts INTEGER NOT NULL,
	error TEXT NOT NULL,
	done_ms INTEGER,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "outbox" VALUES(15,'command',14,'{"text": "RAM"}',1749945600000,1,'',1749945600000);
INSERT INTO "outbox" VALUES(16,'ntfy',14,'{"text": "RAM"}',1749945600000,0,'',NULL);
CREATE TABLE rollup_hour (
	part INTEGER NOT NULL,
	series INTEGER NOT NULL,
	hour INTEGER NOT NULL,
	n INTEGER NOT NULL,
	last ANY NOT NULL,
	below ANY NOT NULL,
	above ANY NOT NULL,
	extra ANY NOT NULL,
	PRIMARY KEY (part, series, hour)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "rollup_hour" VALUES(1749859200,1,23,112,17180147712,278528,131072,-8331264);
INSERT INTO "rollup_hour" VALUES(1749859200,2,23,112,1073741824,0,0,0);
INSERT INTO "rollup_hour" VALUES(1749859200,3,23,112,500,500,250,-14125);
INSERT INTO "rollup_hour" VALUES(1749859200,4,23,22,775,775,0,-8775);
CREATE TABLE rollup_minute (
	part INTEGER NOT NULL,
	series INTEGER NOT NULL,
	unit INTEGER NOT NULL,
	base INTEGER NOT NULL,
	data TEXT NOT NULL,
	n BLOB,
	last BLOB,
	below BLOB,
	above BLOB,
	over BLOB,
	PRIMARY KEY (part, series)
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "rollup_minute" VALUES(1749942900,1,4096,17179951104,'',X'0C0C0C0C0C000000000C0C0C0C0400',X'4C4B023B2C00000000003A2C3B3000',X'605E104B2B000000000F4D3C3A2F00',X'0400420812000000004C1118030900',X'0277025701CF022D016F00000000000000000255020D0203017E006A0000');
INSERT INTO "rollup_minute" VALUES(1749942900,2,1,1073741824,'',X'0C0C0C0C0C000000000C0C0C0C0400',X'',X'',X'',X'');
INSERT INTO "rollup_minute" VALUES(1749942900,3,125,0,'',X'0C0C0C0C0C000000000C0C0C0C0400',X'060300040100000000000401050400',X'060300040100000000000401050300',X'000306020500000000060205010200',X'242322282000000000222820260A00');
INSERT INTO "rollup_minute" VALUES(1749942900,4,25,50,'',X'030203020200000000020302030000',X'00020507090000000015181A1D0000',X'020102010100000000010201020000',X'',X'030103010100000000010301030000');
CREATE TABLE schema_migration (
	version INTEGER NOT NULL,
	name TEXT NOT NULL,
	applied_ms INTEGER NOT NULL,
	PRIMARY KEY (version)
)
 STRICT

;
INSERT INTO "schema_migration" VALUES(1,'first tables',1795449805608);
CREATE TABLE series (
	id INTEGER NOT NULL,
	host INTEGER NOT NULL,
	metric TEXT NOT NULL,
	kind TEXT NOT NULL,
	labels TEXT NOT NULL,
	divisor INTEGER NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (host, metric, labels, divisor)
)
 STRICT

;
INSERT INTO "series" VALUES(1,0,'made_bytes','gauge','{"kind":"sealed"}',1);
INSERT INTO "series" VALUES(2,0,'made_bytes','gauge','{"kind":"still"}',1);
INSERT INTO "series" VALUES(3,0,'made_ratio','gauge','{}',1000);
INSERT INTO "series" VALUES(4,0,'made_events','counter','{}',1);
INSERT INTO "series" VALUES(5,0,'made_bytes','gauge','{"kind":"free"}',1);
CREATE TABLE stress_run (
	id INTEGER NOT NULL,
	ms INTEGER NOT NULL,
	gpu TEXT NOT NULL,
	verdict TEXT NOT NULL,
	document TEXT NOT NULL,
	PRIMARY KEY (id)
)
 STRICT

;
CREATE TABLE transition (
	id INTEGER NOT NULL,
	ms INTEGER NOT NULL,
	mono REAL NOT NULL,
	resource TEXT NOT NULL,
	rule TEXT NOT NULL,
	old INTEGER NOT NULL,
	new INTEGER NOT NULL,
	message TEXT NOT NULL,
	forecast TEXT,
	facts TEXT,
	PRIMARY KEY (id)
)
 STRICT

;
INSERT INTO "transition" VALUES(14,1749945600000,12.5,'ram','r',0,2,'{"template": "RAM full in 2 s", "facts": {}}','{"resource": "ram", "level": "warning", "headroom_bytes": 5, "capacity_bytes": 10, "rate_bytes_per_second": 1.5, "eta_early_seconds": 1.0, "eta_seconds": 2.0, "eta_late_seconds": null, "probabilities": {"60": 0.25}, "who": "python", "cause": "growing", "who_kind": "", "who_pid": null, "who_bytes_per_second": null, "who_share_ratio": null, "may_stop": false, "next_step_bytes": null, "window_seconds": null, "age_seconds": 0.0, "capacity_learned": "", "expected_peak_bytes": null, "spilled_bytes": null}',NULL);
CREATE INDEX chunk_by_time ON chunk (high_ms, low_ms);
CREATE INDEX outbox_waiting ON outbox (channel) WHERE done_ms IS NULL;
CREATE VIEW minute AS
        SELECT r.time, h.name AS host, s.metric, s.labels, r.n, CASE WHEN s.divisor > 1 THEN CAST(r.low AS DOUBLE PRECISION) / s.divisor ELSE r.low END AS min, CASE WHEN s.divisor > 1 THEN CAST(r.high AS DOUBLE PRECISION) / s.divisor ELSE r.high END AS max, CASE WHEN s.divisor > 1 THEN CAST(r.total AS DOUBLE PRECISION) / s.divisor ELSE r.total END AS sum, CASE WHEN s.divisor > 1 THEN CAST(r.last AS DOUBLE PRECISION) / s.divisor ELSE r.last END AS last
        FROM (
            SELECT time, series, n, last, below AS low, above AS high, over AS total
            FROM (SELECT m.part + k.minute * 60 AS time, m.series, json_extract(m.data, '$[0][' || k.minute || ']') AS n, json_extract(m.data, '$[1][' || k.minute || ']') AS last, json_extract(m.data, '$[2][' || k.minute || ']') AS below, json_extract(m.data, '$[3][' || k.minute || ']') AS above, json_extract(m.data, '$[4][' || k.minute || ']') AS over
                FROM rollup_minute m CROSS JOIN (SELECT column1 AS minute FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14)) v) k
                WHERE m.data <> '') j
            WHERE n IS NOT NULL
            UNION ALL
            SELECT time, series, n, at AS last, at - below * unit AS low, at + above * unit AS high,
                n * (at - below * unit) + over * unit AS total
            FROM (SELECT time, series, unit, n, base + last * unit AS at, below, above, over
                FROM (SELECT time, series, unit, base, (((instr('0123456789ABCDEF', substr(hex(n), -1, 1)) - 1) << 0) + ((instr('0123456789ABCDEF', substr(hex(n), -2, 1)) - 1) << 4) + ((instr('0123456789ABCDEF', substr(hex(n), -3, 1)) - 1) << 8) + ((instr('0123456789ABCDEF', substr(hex(n), -4, 1)) - 1) << 12) + ((instr('0123456789ABCDEF', substr(hex(n), -5, 1)) - 1) << 16) + ((instr('0123456789ABCDEF', substr(hex(n), -6, 1)) - 1) << 20) + ((instr('0123456789ABCDEF', substr(hex(n), -7, 1)) - 1) << 24) + ((instr('0123456789ABCDEF', substr(hex(n), -8, 1)) - 1) << 28) + ((instr('0123456789ABCDEF', substr(hex(n), -9, 1)) - 1) << 32) + ((instr('0123456789ABCDEF', substr(hex(n), -10, 1)) - 1) << 36) + ((instr('0123456789ABCDEF', substr(hex(n), -11, 1)) - 1) << 40) + ((instr('0123456789ABCDEF', substr(hex(n), -12, 1)) - 1) << 44) + ((instr('0123456789ABCDEF', substr(hex(n), -13, 1)) - 1) << 48) + ((instr('0123456789ABCDEF', substr(hex(n), -14, 1)) - 1) << 52) + ((instr('0123456789ABCDEF', substr(hex(n), -15, 1)) - 1) << 56) + ((instr('0123456789ABCDEF', substr(hex(n), -16, 1)) - 1) << 60)) AS n, (((instr('0123456789ABCDEF', substr(hex(last), -1, 1)) - 1) << 0) + ((instr('0123456789ABCDEF', substr(hex(last), -2, 1)) - 1) << 4) + ((instr('0123456789ABCDEF', substr(hex(last), -3, 1)) - 1) << 8) + ((instr('0123456789ABCDEF', substr(hex(last), -4, 1)) - 1) << 12) + ((instr('0123456789ABCDEF', substr(hex(last), -5, 1)) - 1) << 16) + ((instr('0123456789ABCDEF', substr(hex(last), -6, 1)) - 1) << 20) + ((instr('0123456789ABCDEF', substr(hex(last), -7, 1)) - 1) << 24) + ((instr('0123456789ABCDEF', substr(hex(last), -8, 1)) - 1) << 28) + ((instr('0123456789ABCDEF', substr(hex(last), -9, 1)) - 1) << 32) + ((instr('0123456789ABCDEF', substr(hex(last), -10, 1)) - 1) << 36) + ((instr('0123456789ABCDEF', substr(hex(last), -11, 1)) - 1) << 40) + ((instr('0123456789ABCDEF', substr(hex(last), -12, 1)) - 1) << 44) + ((instr('0123456789ABCDEF', substr(hex(last), -13, 1)) - 1) << 48) + ((instr('0123456789ABCDEF', substr(hex(last), -14, 1)) - 1) << 52) + ((instr('0123456789ABCDEF', substr(hex(last), -15, 1)) - 1) << 56) + ((instr('0123456789ABCDEF', substr(hex(last), -16, 1)) - 1) << 60)) AS last, (((instr('0123456789ABCDEF', substr(hex(below), -1, 1)) - 1) << 0) + ((instr('0123456789ABCDEF', substr(hex(below), -2, 1)) - 1) << 4) + ((instr('0123456789ABCDEF', substr(hex(below), -3, 1)) - 1) << 8) + ((instr('0123456789ABCDEF', substr(hex(below), -4, 1)) - 1) << 12) + ((instr('0123456789ABCDEF', substr(hex(below), -5, 1)) - 1) << 16) + ((instr('0123456789ABCDEF', substr(hex(below), -6, 1)) - 1) << 20) + ((instr('0123456789ABCDEF', substr(hex(below), -7, 1)) - 1) << 24) + ((instr('0123456789ABCDEF', substr(hex(below), -8, 1)) - 1) << 28) + ((instr('0123456789ABCDEF', substr(hex(below), -9, 1)) - 1) << 32) + ((instr('0123456789ABCDEF', substr(hex(below), -10, 1)) - 1) << 36) + ((instr('0123456789ABCDEF', substr(hex(below), -11, 1)) - 1) << 40) + ((instr('0123456789ABCDEF', substr(hex(below), -12, 1)) - 1) << 44) + ((instr('0123456789ABCDEF', substr(hex(below), -13, 1)) - 1) << 48) + ((instr('0123456789ABCDEF', substr(hex(below), -14, 1)) - 1) << 52) + ((instr('0123456789ABCDEF', substr(hex(below), -15, 1)) - 1) << 56) + ((instr('0123456789ABCDEF', substr(hex(below), -16, 1)) - 1) << 60)) AS below, (((instr('0123456789ABCDEF', substr(hex(above), -1, 1)) - 1) << 0) + ((instr('0123456789ABCDEF', substr(hex(above), -2, 1)) - 1) << 4) + ((instr('0123456789ABCDEF', substr(hex(above), -3, 1)) - 1) << 8) + ((instr('0123456789ABCDEF', substr(hex(above), -4, 1)) - 1) << 12) + ((instr('0123456789ABCDEF', substr(hex(above), -5, 1)) - 1) << 16) + ((instr('0123456789ABCDEF', substr(hex(above), -6, 1)) - 1) << 20) + ((instr('0123456789ABCDEF', substr(hex(above), -7, 1)) - 1) << 24) + ((instr('0123456789ABCDEF', substr(hex(above), -8, 1)) - 1) << 28) + ((instr('0123456789ABCDEF', substr(hex(above), -9, 1)) - 1) << 32) + ((instr('0123456789ABCDEF', substr(hex(above), -10, 1)) - 1) << 36) + ((instr('0123456789ABCDEF', substr(hex(above), -11, 1)) - 1) << 40) + ((instr('0123456789ABCDEF', substr(hex(above), -12, 1)) - 1) << 44) + ((instr('0123456789ABCDEF', substr(hex(above), -13, 1)) - 1) << 48) + ((instr('0123456789ABCDEF', substr(hex(above), -14, 1)) - 1) << 52) + ((instr('0123456789ABCDEF', substr(hex(above), -15, 1)) - 1) << 56) + ((instr('0123456789ABCDEF', substr(hex(above), -16, 1)) - 1) << 60)) AS above, (((instr('0123456789ABCDEF', substr(hex(over), -1, 1)) - 1) << 0) + ((instr('0123456789ABCDEF', substr(hex(over), -2, 1)) - 1) << 4) + ((instr('0123456789ABCDEF', substr(hex(over), -3, 1)) - 1) << 8) + ((instr('0123456789ABCDEF', substr(hex(over), -4, 1)) - 1) << 12) + ((instr('0123456789ABCDEF', substr(hex(over), -5, 1)) - 1) << 16) + ((instr('0123456789ABCDEF', substr(hex(over), -6, 1)) - 1) << 20) + ((instr('0123456789ABCDEF', substr(hex(over), -7, 1)) - 1) << 24) + ((instr('0123456789ABCDEF', substr(hex(over), -8, 1)) - 1) << 28) + ((instr('0123456789ABCDEF', substr(hex(over), -9, 1)) - 1) << 32) + ((instr('0123456789ABCDEF', substr(hex(over), -10, 1)) - 1) << 36) + ((instr('0123456789ABCDEF', substr(hex(over), -11, 1)) - 1) << 40) + ((instr('0123456789ABCDEF', substr(hex(over), -12, 1)) - 1) << 44) + ((instr('0123456789ABCDEF', substr(hex(over), -13, 1)) - 1) << 48) + ((instr('0123456789ABCDEF', substr(hex(over), -14, 1)) - 1) << 52) + ((instr('0123456789ABCDEF', substr(hex(over), -15, 1)) - 1) << 56) + ((instr('0123456789ABCDEF', substr(hex(over), -16, 1)) - 1) << 60)) AS over
                    FROM (SELECT m.part + k.minute * 60 AS time, m.series, m.unit, m.base, CASE WHEN (length(m.n) / 15) = 0 THEN m.n ELSE substr(m.n, CAST(1 + k.minute * (length(m.n) / 15) AS INTEGER), (length(m.n) / 15)) END AS n, CASE WHEN (length(m.last) / 15) = 0 THEN m.last ELSE substr(m.last, CAST(1 + k.minute * (length(m.last) / 15) AS INTEGER), (length(m.last) / 15)) END AS last, CASE WHEN (length(m.below) / 15) = 0 THEN m.below ELSE substr(m.below, CAST(1 + k.minute * (length(m.below) / 15) AS INTEGER), (length(m.below) / 15)) END AS below, CASE WHEN (length(m.above) / 15) = 0 THEN m.above ELSE substr(m.above, CAST(1 + k.minute * (length(m.above) / 15) AS INTEGER), (length(m.above) / 15)) END AS above, CASE WHEN (length(m.over) / 15) = 0 THEN m.over ELSE substr(m.over, CAST(1 + k.minute * (length(m.over) / 15) AS INTEGER), (length(m.over) / 15)) END AS over
                        FROM rollup_minute m CROSS JOIN (SELECT column1 AS minute FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14)) v) k
                        WHERE m.data = '') p) b) c
            WHERE n > 0
        ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
CREATE VIEW hour AS
        SELECT r.time, h.name AS host, s.metric, s.labels, r.n, CASE WHEN s.divisor > 1 THEN CAST(r.low AS DOUBLE PRECISION) / s.divisor ELSE r.low END AS min, CASE WHEN s.divisor > 1 THEN CAST(r.high AS DOUBLE PRECISION) / s.divisor ELSE r.high END AS max, CASE WHEN s.divisor > 1 THEN CAST(r.total AS DOUBLE PRECISION) / s.divisor ELSE r.total END AS sum, CASE WHEN s.divisor > 1 THEN CAST(r.last AS DOUBLE PRECISION) / s.divisor ELSE r.last END AS last
        FROM (
            SELECT r.part + r.hour * 3600 AS time, r.series, r.n, r.last,
                CASE s.divisor WHEN 0 THEN r.below ELSE r.last - r.below END AS low,
                CASE s.divisor WHEN 0 THEN r.above ELSE r.last + r.above END AS high,
                CASE s.divisor WHEN 0 THEN r.extra ELSE r.n * r.last + r.extra END AS total
            FROM rollup_hour r JOIN series s ON s.id = r.series
        ) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
CREATE VIEW recent AS
        SELECT r.time, h.name AS host, s.metric, s.labels, CASE WHEN s.divisor > 1 THEN CAST(r.value AS DOUBLE PRECISION) / s.divisor ELSE r.value END AS value
        FROM (
        SELECT (b.ms + o.value) / 1000.0 AS time, CAST(j.key AS INTEGER) AS series,
            CASE j.type WHEN 'array' THEN json_extract(j.value, '$[' || o.key || ']') ELSE j.value END AS value
        FROM batch b, json_each(b.offsets) o, json_each(b.readings) j) r JOIN series s ON s.id = r.series JOIN host h ON h.id = s.host;
COMMIT;
