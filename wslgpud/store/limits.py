"""How newest data is cut into batches, and older data into chunks."""

#: length of a chunk: long enough to compress, short enough that the newest, larger rows stay few
PERIOD_SECONDS = 900
PERIOD_MS = PERIOD_SECONDS * 1000
#: at ten ticks a second a chunk is closed early
MAX_TICKS = 3000
#: ticks in one batch at most; a batch also ends with its period, and where time does not grow
MAX_BATCH = 60
