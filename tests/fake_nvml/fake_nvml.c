/* A libnvidia-ml.so.1 without a GPU, for tests: the real probe loads it in place of NVIDIA's.
 *
 * It reads the file beside itself, its own name with ".settings", at every call, so a test changes the machine
 * while it runs. One setting a line, "key value"; "key@1" is for the second GPU alone:
 *   gpus N                      how many there are (default 1)
 *   init CODE                   what nvmlInit returns
 *   CALL CODE                   what a function returns, by its name without "nvml", e.g. DeviceGetFanSpeed 3
 *   hang CALL                   that function never returns
 *   crash CALL                  that function ends the process by SIGSEGV
 *   lost 1                      (with @index) every call for that GPU returns NVML_ERROR_GPU_IS_LOST
 *   used BYTES, total BYTES, reserved BYTES, utilization N, throttle BITS, temperature N
 *   wddm 1                      processes without memory (the sentinel), as under WSL2
 *   pid N                       a process on each GPU
 *   delay_us N                  each call takes so long; delay_us.CALL for one function alone
 *   busy_us N                   each call computes so long, as a driver does; busy_us.CALL for one alone
 *   fixed 1                     this file is not read again: where the cost of calls is measured
 *   print TEXT                  nvmlInit prints it on standard output
 *   process_name TEXT           what nvmlSystemGetProcessName answers
 * Structures and numbers are those of NVIDIA's nvml.h.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15 };
#define MAX_GPUS 8
static int handles[MAX_GPUS];
static char settings[8192];

static void load(void)
{
    static char path[4096];
    static int fixed;
    Dl_info self;
    if (fixed)
        return;
    if (!path[0] && dladdr((void *)load, &self))
        snprintf(path, sizeof path, "%s.settings", self.dli_fname);
    FILE *file = fopen(path, "r");
    settings[0] = '\n';
    settings[1] = 0;
    if (file) {
        size_t got = fread(settings + 1, 1, sizeof settings - 2, file);
        settings[got + 1] = 0;
        fclose(file);
        fixed = strstr(settings, "\nfixed 1\n") != NULL;
    }
}

/* The text after "key@index " or else "key ", or NULL. */
static const char *find(const char *key, int index)
{
    char wanted[128];
    for (int own = 1; own >= 0; own--) {
        if (own && index < 0)
            continue;
        if (own)
            snprintf(wanted, sizeof wanted, "\n%s@%d ", key, index);
        else
            snprintf(wanted, sizeof wanted, "\n%s ", key);
        const char *hit = strstr(settings, wanted);
        if (hit)
            return hit + strlen(wanted);
    }
    return NULL;
}

static u64 number(const char *key, int index, u64 otherwise)
{
    const char *text = find(key, index);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static int names(const char *key, int index, const char *call)
{
    const char *text = find(key, index);
    size_t length = strlen(call);
    return text && !strncmp(text, call, length) && (text[length] == '\n' || !text[length]);
}

static u64 duration(const char *key, const char *call, int index)
{
    char own[128];
    snprintf(own, sizeof own, "%s.%s", key, call);
    return number(own, index, number(key, index, 0));
}

static int enter(const char *call, void *handle)
{
    load();
    int index = handle ? (int)((int *)handle - handles) : -1;
    if (names("hang", index, call))
        for (;;)
            pause();
    if (names("crash", index, call))
        raise(SIGSEGV);
    u64 delay = duration("delay_us", call, index), busy = duration("busy_us", call, index);
    if (delay)
        usleep((useconds_t)delay);
    if (busy) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        u64 end = (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000 + busy;
        while ((u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000 < end)
            clock_gettime(CLOCK_MONOTONIC, &now);
    }
    if (index >= 0 && number("lost", index, 0))
        return LOST;
    return (int)number(call, index, 0);
}

#define INDEX(handle) ((int)((int *)(handle) - handles))
#define ENTER(call, handle)                                                                                      \
    do {                                                                                                         \
        int code = enter(call, handle);                                                                          \
        if (code)                                                                                                \
            return code;                                                                                         \
    } while (0)

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    ENTER("Init", NULL);
    if (find("print", -1)) {
        puts(find("print", -1));
        fflush(stdout);
    }
    return (int)number("init", -1, 0);
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { ENTER("SystemGetDriverVersion", NULL); snprintf(text, size, "591.44"); return OK; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { snprintf(text, size, "13.590.44.01"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13010; return OK; }
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size)
{
    load();
    const char *name = find("process_name", -1);
    (void)pid;
    snprintf(text, size, "%.*s", name ? (int)strcspn(name, "\n") : 11, name ? name : "/python3.12");
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER("DeviceGetCount", NULL);
    *count = (unsigned)number("gpus", -1, 1);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    if (index >= MAX_GPUS)
        return NOT_FOUND;
    ENTER("DeviceGetHandleByIndex", &handles[index]);
    *handle = &handles[index];
    return OK;
}

#define TEXT(call, ...)                                                                                          \
    int nvml##call(void *handle, char *text, unsigned size)                                                      \
    {                                                                                                            \
        ENTER(#call, handle);                                                                                    \
        snprintf(text, size, __VA_ARGS__);                                                                       \
        return OK;                                                                                               \
    }
TEXT(DeviceGetUUID, "GPU-%08llx-1111-2222-3333-444444444444", number("uuid", INDEX(handle), (u64)INDEX(handle)))
TEXT(DeviceGetName, "NVIDIA GeForce RTX 5070 Ti")
TEXT(DeviceGetVbiosVersion, "98.03.3b.00.01")

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci)
{
    ENTER("DeviceGetPciInfo", handle);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", INDEX(handle) + 1);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    ENTER("DeviceGetCudaComputeCapability", handle);
    *major = 12;
    *minor = 0;
    return OK;
}
int nvmlDeviceGetDriverModel_v2(void *handle, unsigned *now, unsigned *pending)
{
    ENTER("DeviceGetDriverModel", handle);
    *now = *pending = 0;
    return OK;
}

#define TOTAL number("total", INDEX(handle), 17094934528ULL)
#define USED number("used", INDEX(handle), 2147483648ULL)
#define RESERVED number("reserved", INDEX(handle), 268435456ULL)
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory)
{
    ENTER("DeviceGetMemoryInfo", handle);
    memory->total = TOTAL;
    memory->used = USED + RESERVED;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory)
{
    ENTER("DeviceGetMemoryInfo_v2", handle);
    if (memory->version != (sizeof(MemoryV2) | 2u << 24))
        return 25;
    memory->total = TOTAL;
    memory->reserved = RESERVED;
    memory->used = USED;
    memory->free = TOTAL - USED - RESERVED;
    return OK;
}
typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates)
{
    ENTER("DeviceGetUtilizationRates", handle);
    rates->gpu = (unsigned)number("utilization", INDEX(handle), 37);
    rates->memory = 12;
    return OK;
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius)
{
    (void)sensor;
    ENTER("DeviceGetTemperature", handle);
    *celsius = (unsigned)number("temperature", INDEX(handle), 54);
    return OK;
}
int nvmlDeviceGetTemperatureThreshold(void *handle, int limit, unsigned *celsius)
{
    ENTER("DeviceGetTemperatureThreshold", handle);
    *celsius = limit ? 90 : 95;
    return OK;
}
int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *megahertz)
{
    ENTER("DeviceGetClockInfo", handle);
    *megahertz = (unsigned[]){2452, 2452, 14001, 2100}[clock];
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *reasons)
{
    ENTER("DeviceGetCurrentClocksThrottleReasons", handle);
    *reasons = number("throttle", INDEX(handle), 4);
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, u64 *millijoules)
{
    ENTER("DeviceGetTotalEnergyConsumption", handle);
    *millijoules = 123456789;
    return OK;
}

#define UNSIGNED(call, value)                                                                                    \
    int nvml##call(void *handle, unsigned *answer)                                                               \
    {                                                                                                            \
        ENTER(#call, handle);                                                                                    \
        *answer = (unsigned)number(#call ".value", INDEX(handle), value);                                        \
        return OK;                                                                                               \
    }
UNSIGNED(DeviceGetPowerUsage, 142345)
UNSIGNED(DeviceGetEnforcedPowerLimit, 300000)
UNSIGNED(DeviceGetPerformanceState, 2)
UNSIGNED(DeviceGetFanSpeed, 41)
UNSIGNED(DeviceGetCurrPcieLinkGeneration, 4)
UNSIGNED(DeviceGetCurrPcieLinkWidth, 16)
UNSIGNED(DeviceGetMaxPcieLinkGeneration, 5)
UNSIGNED(DeviceGetMaxPcieLinkWidth, 16)
UNSIGNED(DeviceGetDisplayActive, 1)

#define PAIR(call, first)                                                                                        \
    int nvml##call(void *handle, unsigned *one, unsigned *two)                                                   \
    {                                                                                                            \
        ENTER(#call, handle);                                                                                    \
        *one = first;                                                                                            \
        *two = 167000;                                                                                           \
        return OK;                                                                                               \
    }
PAIR(DeviceGetEncoderUtilization, 5)
PAIR(DeviceGetDecoderUtilization, 0)

/* Dear calls that other tools make: the driver counts bytes for 20 ms, twice. */
int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned *kilobytes_per_second)
{
    (void)counter;
    ENTER("DeviceGetPcieThroughput", handle);
    *kilobytes_per_second = (unsigned)number("DeviceGetPcieThroughput.value", INDEX(handle), 1250);
    return OK;
}
int nvmlDeviceGetBAR1MemoryInfo(void *handle, Memory *memory)
{
    ENTER("DeviceGetBAR1MemoryInfo", handle);
    *memory = (Memory){268435456, 251658240, 16777216};
    return OK;
}

/* What a GeForce under WSL2 does not answer. */
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, u64 *count)
{
    (void)type, (void)counter, (void)count;
    ENTER("DeviceGetTotalEccErrors", handle);
    return NOT_SUPPORTED;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending)
{
    ENTER("DeviceGetMigMode", handle);
    *now = *pending = 0;
    return number("mig", INDEX(handle), 0) ? (*now = 1, OK) : NOT_SUPPORTED;
}

typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;
static int processes(void *handle, unsigned *count, Process *list)
{
    unsigned pid = (unsigned)number("pid", INDEX(handle), 0);
    unsigned room = *count;
    *count = pid ? 1 : 0;
    if (!pid)
        return OK;
    if (!list || room < 1)
        return INSUFFICIENT_SIZE;
    list[0] = (Process){pid, number("wddm", INDEX(handle), 0) ? ~0ULL : 1073741824ULL, ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *list)
{
    ENTER("DeviceGetComputeRunningProcesses", handle);
    return processes(handle, count, list);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *list)
{
    (void)list;
    ENTER("DeviceGetGraphicsRunningProcesses", handle);
    *count = 0;
    return OK;
}
