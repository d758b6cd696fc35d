/* A stand-in for NVIDIA's libnvidia-ml.so.1, so that nvidia-ml-py and all above it run for real on a machine without a driver.
 *
 * What it tells stands in the file that FAKE_NVML names, read anew at each call: a first line `init driver cuda` (NVML's return
 * code of nvmlInit, versions), then a line for each GPU as in struct gpu. A figure below 0 is not supported by that GPU; a
 * return code in `broken` other than 0 is what each call about that GPU gives. slices: MIG slices, -1 where MIG is off.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define MOST 16

struct gpu {
    char uuid[96], name[96];
    long long total, used;
    int busy, jpeg, decoder, milliwatts, celsius;
    long long reasons;
    int major, minor, slices, broken;
};
struct memory { unsigned long long total, free, used; };
struct utilization { unsigned gpu, memory; };

static int known_init, known_cuda, count;
static char known_driver[80];
static struct gpu gpus[MOST];
static struct { int gpu, slice; } handles[MOST][MOST + 1];

static void look(void)
{
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    count = 0;
    known_init = 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    if (!file)
        return;
    if (fscanf(file, "%d %79s %d", &known_init, known_driver, &known_cuda) == 3)
        while (count < MOST) {
            struct gpu *g = &gpus[count];
            if (fscanf(file, "%95s %95s %lld %lld %d %d %d %d %d %lld %d %d %d %d", g->uuid, g->name, &g->total, &g->used, &g->busy,
                       &g->jpeg, &g->decoder, &g->milliwatts, &g->celsius, &g->reasons, &g->major, &g->minor, &g->slices,
                       &g->broken) != 14)
                break;
            count++;
        }
    fclose(file);
}

/* Finds the GPU of a handle, or of the GPU that a slice was cut from. */
static int find(void *handle, struct gpu **found, int *slice)
{
    look();
    int *place = handle;
    if (place[0] >= count)
        return NOT_FOUND;
    *found = &gpus[place[0]];
    *slice = place[1];
    return (*found)->broken;
}

static int figure(void *handle, long long offset, unsigned *value, int whole_alone)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed)
        return failed;
    int told = *(int *)((char *)g + offset);
    if (told < 0 || (slice && whole_alone))
        return NOT_SUPPORTED;
    *value = (unsigned)told;
    return OK;
}

#define AT(field) ((long long)(size_t) & ((struct gpu *)0)->field)

int nvmlInitWithFlags(unsigned flags) { (void)flags; look(); return known_init; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "an error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { look(); snprintf(out, size, "%s", known_driver); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { look(); *out = known_cuda; return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { look(); *out = (unsigned)count; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    look();
    if ((int)index >= count)
        return INVALID_ARGUMENT;
    handles[index][0].gpu = (int)index;
    *out = &handles[index][0];
    return gpus[index].broken;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    *now = *pending = !failed && g->slices >= 0;
    return failed;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *out)
{
    (void)handle;
    *out = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed || (int)index >= g->slices)
        return failed ? failed : NOT_FOUND;
    int number = ((int *)handle)[0];
    handles[number][index + 1].gpu = number;
    handles[number][index + 1].slice = (int)index + 1;
    *out = &handles[number][index + 1];
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (!failed && slice)
        snprintf(out, size, "MIG-%d-%s", slice, g->uuid);
    else if (!failed)
        snprintf(out, size, "%s", g->uuid);
    return failed;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed)
        return failed;
    snprintf(out, size, "%s", g->name);
    for (char *c = out; *c; c++)
        if (*c == '_')
            *c = ' ';
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed)
        return failed;
    out->total = (unsigned long long)g->total / (slice ? 7 : 1);
    out->used = (unsigned long long)g->used / (slice ? 7 : 1);
    out->free = out->total - out->used;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed)
        return failed;
    *major = g->major;
    *minor = g->minor;
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *out)
{
    out->memory = 0;
    return figure(handle, AT(busy), &out->gpu, 1);
}

int nvmlDeviceGetJpgUtilization(void *handle, unsigned *out, unsigned *period)
{
    *period = 100000;
    return figure(handle, AT(jpeg), out, 1);
}

int nvmlDeviceGetDecoderUtilization(void *handle, unsigned *out, unsigned *period)
{
    *period = 100000;
    return figure(handle, AT(decoder), out, 1);
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *out) { return figure(handle, AT(milliwatts), out, 1); }

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out)
{
    return sensor ? INVALID_ARGUMENT : figure(handle, AT(celsius), out, 1);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *out)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed || g->reasons < 0 || slice)
        return failed ? failed : NOT_SUPPORTED;
    *out = (unsigned long long)g->reasons;
    return OK;
}

/* Bytes over PCIe, sent and received. With FAKE_NVML_PCIE=counters a million more of each at every look; else rates alone,
 * a million bytes a second each, after 20 ms as the real ones. */
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    unsigned long long value;
};

int nvmlDeviceGetFieldValues(void *handle, int asked, struct field *fields)
{
    static unsigned long long looks;
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed)
        return failed;
    const char *how = getenv("FAKE_NVML_PCIE");
    looks++;
    for (int i = 0; i < asked; i++) {
        int known = (fields[i].id == 197 || fields[i].id == 198) && how && !strcmp(how, "counters");
        fields[i].type = 3; /* unsigned long long */
        fields[i].code = known ? OK : NOT_SUPPORTED;
        fields[i].value = known ? looks * 1000000ULL : 0;
    }
    return OK;
}

int nvmlDeviceGetPcieThroughput(void *handle, int way, unsigned *out)
{
    struct gpu *g;
    int slice, failed = find(handle, &g, &slice);
    if (failed || way > 1 || way < 0)
        return failed ? failed : INVALID_ARGUMENT;
    usleep(20000);
    *out = 1000;
    return OK;
}
