"""How newest data is cut into batches, and older data into chunks."""

from wslgpud.words import say

#: length of a chunk: long enough to compress, short enough that the newest, larger rows stay few
PERIOD_SECONDS = 900
PERIOD_MS = PERIOD_SECONDS * 1000
#: at ten ticks a second a chunk is closed early
MAX_TICKS = 3000
#: ticks in one batch at most; a batch also ends with its period, and where time does not grow
MAX_BATCH = 60
#: ticks of a chunk that readers believe; a chunk is closed at MAX_TICKS, after the batch that brings it there
MOST_TICKS = 16 * MAX_TICKS
#: bytes that the masks, or the processes, of a chunk inflate to; those of a busy machine are below a tenth
MOST_INFLATED_BYTES = 16 << 20
#: values that one read gives; of a series at 1 s those of four months
MOST_VALUES = 10_000_000
TOO_MANY = say("more than {count} values; ask for a shorter time, or for steps", count=f"{MOST_VALUES:,}")
#: bytes of a row that readers take from an SQLite file
MOST_ROW_BYTES = 64 << 20
