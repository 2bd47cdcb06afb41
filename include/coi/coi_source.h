/* COI on the host (the "source"): libcoi_host, which is libsnapify. See coi(7).
 *
 * Any thread may call any function at any time. Handles that are invalid are refused with COI_INVALID_HANDLE, null pointers
 * with COI_INVALID_POINTER. Once a process has died, what concerns it returns COI_PROCESS_DIED. A program that was not
 * started by `snapify run` has no engines.
 *
 * Many functions end with three parameters: events that must be signalled before anything is done, and `completion`:
 * null or COI_EVENT_SYNC to wait for the end, COI_EVENT_ASYNC not to wait for it, or a place for an event. */
#ifndef SNAPIFY_COI_SOURCE_H
#define SNAPIFY_COI_SOURCE_H

#include "coi_common.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COI_PROCESS_SOURCE ((COIPROCESS)-1)
/* For COIBufferSetState: all sink processes in which the buffer is valid. */
#define COI_SINK_OWNERS ((COIPROCESS)-2)
#define COI_FAT_BINARY ((uint64_t)-1)
#define COI_EVENT_ASYNC ((COIEVENT *)1)
#define COI_EVENT_SYNC ((COIEVENT *)2)

/* ------------------------------------------------------------------------------------------------ engines: cards */

#define COI_MAX_DRIVER_VERSION_STR_LEN 255
#define COI_MAX_HW_THREADS 1024

typedef enum {
    COI_ENG_ECC_DISABLED = 0,
    COI_ENG_ECC_ENABLED = 1,
    COI_ENG_ECC_UNKNOWN = 2
} coi_eng_misc;

/* What is not known is 0. */
typedef struct COI_ENGINE_INFO {
    coi_wchar_t DriverVersion[COI_MAX_DRIVER_VERSION_STR_LEN];
    COI_DEVICE_TYPE ISA;
    uint32_t NumCores;
    coi_eng_misc MiscFlags;
    uint32_t NumThreads;
    uint32_t CoreMaxFrequency; /* MHz */
    uint32_t Load[COI_MAX_HW_THREADS];
    uint64_t PhysicalMemory; /* bytes */
    uint64_t PhysicalMemoryFree;
    uint64_t SwapMemory;
    uint64_t SwapMemoryFree;
    uint16_t VendorId;
    uint16_t DeviceId;
    uint16_t SubSystemId;
    uint16_t BoardStepping;
    uint16_t BoardSKU;
} COI_ENGINE_INFO;

/* How many cards there are. COI_DOES_NOT_EXIST for a kind that there is not. */
COIACCESSAPI COIRESULT COIEngineGetCount(COI_DEVICE_TYPE kind, uint32_t *count);
/* A card by its number. COI_OUT_OF_RANGE if there are not so many. */
COIACCESSAPI COIRESULT COIEngineGetHandle(COI_DEVICE_TYPE kind, uint32_t index, COIENGINE *engine);
/* `size` is that of the structure (COI_SIZE_MISMATCH). */
COIACCESSAPI COIRESULT COIEngineGetInfo(COIENGINE engine, uint32_t size, COI_ENGINE_INFO *info);

/* ---------------------------------------------------------------------------------------------- processes on cards */

/* Starts an executable of this machine on a card. Its arguments are its file name and `argv` (argc of them); its environment
 * that of this process (if `inherit`) and the list `env` of NAME=VALUE, which a null pointer ends. With `proxy` it has this
 * process's standard output and error, otherwise none. Its libraries are looked for in `search`, by default in
 * SINK_LD_LIBRARY_PATH, and where the dynamic loader always looks. It must be linked with libcoi_device. */
COIACCESSAPI COIRESULT COIProcessCreateFromFile(COIENGINE engine, const char *file, int argc, const char **argv,
                                                uint8_t inherit, const char **env, uint8_t proxy, const char *reserved,
                                                uint64_t buffer_space, const char *search, COIPROCESS *process);
/* The same from memory. `origin` and `offset` tell from where the bytes were taken; they are checked and not used. */
COIACCESSAPI COIRESULT COIProcessCreateFromMemory(COIENGINE engine, const char *name, const void *image, uint64_t length,
                                                  int argc, const char **argv, uint8_t inherit, const char **env,
                                                  uint8_t proxy, const char *reserved, uint64_t buffer_space,
                                                  const char *search, const char *origin, uint64_t offset,
                                                  COIPROCESS *process);
/* Ends a process. Waits for the return of its main: `timeout` milliseconds, or for ever with -1. After that it is killed if
 * `force` (timeout 0: at once); otherwise COI_TIME_OUT_REACHED, and it lives on. 0 without `force` only asks whether it
 * lives. `status` is what main returned, `termination` 0 or the signal that killed it; both may be null. */
COIACCESSAPI COIRESULT COIProcessDestroy(COIPROCESS process, int32_t timeout, uint8_t force, int8_t *status,
                                         uint32_t *termination);
/* Functions by exported name: of the executable and of all libraries. COI_DOES_NOT_EXIST if some are missing, which are null
 * then. */
COIACCESSAPI COIRESULT COIProcessGetFunctionHandles(COIPROCESS process, uint32_t count, const char **names,
                                                    COIFUNCTION *functions);
/* Loads a shared library. */
COIACCESSAPI COIRESULT COIProcessLoadLibraryFromMemory(COIPROCESS process, const void *image, uint64_t length,
                                                       const char *name, const char *search, const char *origin,
                                                       uint64_t offset, uint32_t flags, COILIBRARY *library);
COIACCESSAPI COIRESULT COIProcessLoadLibraryFromFile(COIPROCESS process, const char *file, const char *name,
                                                     const char *search, uint32_t flags, COILIBRARY *library);
COIACCESSAPI COIRESULT COIProcessUnloadLibrary(COIPROCESS process, COILIBRARY library);
/* Libraries in this process's memory that others, loaded later, may need: they are loaded before those, by their sonames. */
COIACCESSAPI COIRESULT COIProcessRegisterLibraries(uint32_t count, const void **images, const uint64_t *lengths,
                                                   const char **origins, const uint64_t *offsets);
/* Hints that change nothing here. */
COIACCESSAPI COIRESULT COIProcessSetCacheSize(COIPROCESS process, uint64_t huge_pool, uint32_t huge_flags,
                                              uint64_t small_pool, uint32_t small_flags, uint32_t dependencies,
                                              const COIEVENT *dependency, COIEVENT *completion);

typedef enum COI_DMA_MODE {
    COI_DMA_MODE_SINGLE = 0,
    COI_DMA_MODE_READ_WRITE,
    COI_DMA_MODE_ROUND_ROBIN,
    COI_DMA_RESERVED
} COI_DMA_MODE;

COIACCESSAPI COIRESULT COIProcessConfigureDMA(uint64_t channels, COI_DMA_MODE mode);

#define COI_CACHE_MODE_MASK 0x00000007
#define COI_CACHE_MODE_NOCHANGE 0x00000001
#define COI_CACHE_MODE_ONDEMAND_SYNC 0x00000002
#define COI_CACHE_MODE_ONDEMAND_ASYNC 0x00000003
#define COI_CACHE_ACTION_MASK 0x00070000
#define COI_CACHE_ACTION_NONE 0x00010000
#define COI_CACHE_ACTION_GROW_NOW 0x00020000
#define COI_CACHE_ACTION_FREE_UNUSED 0x00030000

/* ------------------------------------------------------------------------------------------------------ pipelines */

#define COI_PIPELINE_MAX_PIPELINES 512
#define COI_PIPELINE_MAX_IN_BUFFERS 16384
#define COI_PIPELINE_MAX_IN_MISC_DATA_LEN 32768

typedef enum COI_ACCESS_FLAGS {
    COI_SINK_READ = 1,
    COI_SINK_WRITE,
    COI_SINK_WRITE_ENTIRE,
    COI_SINK_READ_ADDREF,
    COI_SINK_WRITE_ADDREF,
    COI_SINK_WRITE_ENTIRE_ADDREF
} COI_ACCESS_FLAGS;

/* A queue of functions with a thread of its own on the card; in order, and beside other pipelines. There are 64 at most for
 * a process (COI_RESOURCE_EXHAUSTED). `mask` and `stack_size` are checked and not used. */
COIACCESSAPI COIRESULT COIPipelineCreate(COIPROCESS process, COI_CPU_MASK mask, uint32_t stack_size, COIPIPELINE *pipeline);
/* Waits for all functions in the queue. */
COIACCESSAPI COIRESULT COIPipelineDestroy(COIPIPELINE pipeline);
/* Appends a function. It runs when `dependency` are signalled and the buffers are on the card. `misc` is copied now; `answer`
 * is filled before the event is signalled. */
COIACCESSAPI COIRESULT COIPipelineRunFunction(COIPIPELINE pipeline, COIFUNCTION function, uint32_t buffers,
                                              const COIBUFFER *buffer, const COI_ACCESS_FLAGS *access,
                                              uint32_t dependencies, const COIEVENT *dependency, const void *misc,
                                              uint16_t misc_length, void *answer, uint16_t answer_length,
                                              COIEVENT *completion);
COIACCESSAPI COIRESULT COIPipelineGetEngine(COIPIPELINE pipeline, COIENGINE *engine);
COIACCESSAPI COIRESULT COIPipelineSetCPUMask(COIPROCESS process, uint32_t core, uint8_t thread, COI_CPU_MASK *mask);
COIACCESSAPI COIRESULT COIPipelineClearCPUMask(COI_CPU_MASK *mask);

/* -------------------------------------------------------------------------------------------------------- buffers */

typedef enum COI_BUFFER_TYPE {
    COI_BUFFER_NORMAL = 1,
    COI_BUFFER_RESERVED_1,
    COI_BUFFER_RESERVED_2,
    COI_BUFFER_RESERVED_3,
    COI_BUFFER_OPENCL
} COI_BUFFER_TYPE;

#define COI_SAME_ADDRESS_SINKS 0x00000001
#define COI_SAME_ADDRESS_SINKS_AND_SOURCE 0x00000002
#define COI_OPTIMIZE_SOURCE_READ 0x00000004
#define COI_OPTIMIZE_SOURCE_WRITE 0x00000008
#define COI_OPTIMIZE_SINK_READ 0x00000010
#define COI_OPTIMIZE_SINK_WRITE 0x00000020
#define COI_OPTIMIZE_NO_DMA 0x00000040
#define COI_OPTIMIZE_HUGE_PAGE_SIZE 0x00000080
#define COI_SINK_MEMORY 0x00000100

typedef enum COI_MAP_TYPE {
    COI_MAP_READ_WRITE = 1,
    COI_MAP_READ_ONLY,
    COI_MAP_WRITE_ENTIRE_BUFFER
} COI_MAP_TYPE;

typedef enum COI_COPY_TYPE {
    COI_COPY_UNSPECIFIED = 0,
    COI_COPY_USE_DMA,
    COI_COPY_USE_CPU,
    COI_COPY_UNSPECIFIED_MOVE_ENTIRE,
    COI_COPY_USE_DMA_MOVE_ENTIRE,
    COI_COPY_USE_CPU_MOVE_ENTIRE
} COI_COPY_TYPE;

typedef enum {
    COI_BUFFER_VALID = 0,
    COI_BUFFER_INVALID,
    COI_BUFFER_VALID_MAY_DROP,
    COI_BUFFER_RESERVED
} COI_BUFFER_STATE;

typedef enum {
    COI_BUFFER_MOVE = 0,
    COI_BUFFER_NO_MOVE
} COI_BUFFER_MOVE_FLAG;

/* A section of an array of up to three dimensions: elements `lower` to `upper` in steps of `stride`, of `size` bytes between
 * one index and the next; `lindex` is the index of the first element. */
typedef struct dim_desc {
    int64_t size;
    int64_t lindex;
    int64_t lower;
    int64_t upper;
    int64_t stride;
} dim_desc;

typedef struct arr_desc {
    int64_t base;
    int64_t rank;
    dim_desc dim[3];
} arr_desc;

/* A buffer: one logical object, with a copy on the host and one in each process; which copies of which bytes are valid is kept
 * track of. At first it is valid on the host, with the bytes at `initial` if that is not null. */
COIACCESSAPI COIRESULT COIBufferCreate(uint64_t size, COI_BUFFER_TYPE kind, uint32_t flags, const void *initial,
                                       uint32_t processes, const COIPROCESS *process, COIBUFFER *buffer);
/* `memory` is the copy on the host; with COI_SINK_MEMORY the copy in the one process, and valid there. */
COIACCESSAPI COIRESULT COIBufferCreateFromMemory(uint64_t size, COI_BUFFER_TYPE kind, uint32_t flags, void *memory,
                                                 uint32_t processes, const COIPROCESS *process, COIBUFFER *buffer);
/* Waits for all that was begun with the buffer. COI_RETRY while it is mapped. */
COIACCESSAPI COIRESULT COIBufferDestroy(COIBUFFER buffer);
/* Gives the host access. A function that gets the buffer meanwhile is refused with COI_RETRY. */
COIACCESSAPI COIRESULT COIBufferMap(COIBUFFER buffer, uint64_t offset, uint64_t length, COI_MAP_TYPE kind,
                                    uint32_t dependencies, const COIEVENT *dependency, COIEVENT *completion,
                                    COIMAPINSTANCE *instance, void **data);
COIACCESSAPI COIRESULT COIBufferUnmap(COIMAPINSTANCE instance, uint32_t dependencies, const COIEVENT *dependency,
                                      COIEVENT *completion);
/* The buffer's address on the card, which it keeps as long as it exists; in its first process, or in a certain one. */
COIACCESSAPI COIRESULT COIBufferGetSinkAddress(COIBUFFER buffer, uint64_t *address);
COIACCESSAPI COIRESULT COIBufferGetSinkAddressEx(COIPROCESS process, COIBUFFER buffer, uint64_t *address);
/* Writes where the buffer is valid, on the host if it is valid there; the place is then the only valid one. */
COIACCESSAPI COIRESULT COIBufferWrite(COIBUFFER buffer, uint64_t offset, const void *source, uint64_t length,
                                      COI_COPY_TYPE kind, uint32_t dependencies, const COIEVENT *dependency,
                                      COIEVENT *completion);
/* Writes in a certain process. */
COIACCESSAPI COIRESULT COIBufferWriteEx(COIBUFFER buffer, COIPROCESS process, uint64_t offset, const void *source,
                                        uint64_t length, COI_COPY_TYPE kind, uint32_t dependencies,
                                        const COIEVENT *dependency, COIEVENT *completion);
COIACCESSAPI COIRESULT COIBufferRead(COIBUFFER buffer, uint64_t offset, void *target, uint64_t length, COI_COPY_TYPE kind,
                                     uint32_t dependencies, const COIEVENT *dependency, COIEVENT *completion);
COIACCESSAPI COIRESULT COIBufferCopy(COIBUFFER target, COIBUFFER source, uint64_t target_offset, uint64_t source_offset,
                                     uint64_t length, COI_COPY_TYPE kind, uint32_t dependencies,
                                     const COIEVENT *dependency, COIEVENT *completion);
COIACCESSAPI COIRESULT COIBufferCopyEx(COIBUFFER target, COIPROCESS process, COIBUFFER source, uint64_t target_offset,
                                       uint64_t source_offset, uint64_t length, COI_COPY_TYPE kind,
                                       uint32_t dependencies, const COIEVENT *dependency, COIEVENT *completion);
/* Sections of arrays: one of them in the buffer, `base` being an offset, and one in memory. */
COIACCESSAPI COIRESULT COIBufferWriteMultiD(COIBUFFER buffer, COIPROCESS process, uint64_t offset, struct arr_desc *target,
                                            struct arr_desc *source, COI_COPY_TYPE kind, uint32_t dependencies,
                                            const COIEVENT *dependency, COIEVENT *completion);
COIACCESSAPI COIRESULT COIBufferReadMultiD(COIBUFFER buffer, uint64_t offset, struct arr_desc *target,
                                           struct arr_desc *source, COI_COPY_TYPE kind, uint32_t dependencies,
                                           const COIEVENT *dependency, COIEVENT *completion);
COIACCESSAPI COIRESULT COIBufferSetState(COIBUFFER buffer, COIPROCESS process, COI_BUFFER_STATE state,
                                         COI_BUFFER_MOVE_FLAG move, uint32_t dependencies, const COIEVENT *dependency,
                                         COIEVENT *completion);

/* --------------------------------------------------------------------------------------------------------- events */

/* Waits for one or all of the events: `timeout` milliseconds, for ever with -1, not at all with 0. COI_TIME_OUT_REACHED if
 * that does not suffice. `signalled` and `indices` tell which have come, and may be null with one event or with `all`. */
COIACCESSAPI COIRESULT COIEventWait(uint16_t count, const COIEVENT *event, int32_t timeout, uint8_t all,
                                    uint32_t *signalled, uint32_t *indices);
/* Makes an event that COIEventSignalUserEvent signals, once. */
COIACCESSAPI COIRESULT COIEventRegisterUserEvent(COIEVENT *event);
/* Gives it up. Those who wait for it get COI_EVENT_CANCELED. */
COIACCESSAPI COIRESULT COIEventUnregisterUserEvent(COIEVENT event);

typedef void (*COI_EVENT_CALLBACK)(COIEVENT event, const COIRESULT result, const void *user);

/* Has `callback` called when the event is signalled, before those who wait for it are woken; at once if it is already. It must
 * not wait for events. `flags` is 0. */
COIACCESSAPI COIRESULT COIEventRegisterCallback(const COIEVENT event, COI_EVENT_CALLBACK callback, const void *user,
                                                const uint64_t flags);

/* ---------------------------------------------------------------------------------------------------------- other */

/* The name of a result, "COI_SUCCESS" and so on. */
COIACCESSAPI const char *COIResultGetName(COIRESULT result);
/* A counter of cycles, and how many there are in a second. */
COIACCESSAPI uint64_t COIPerfGetCycleCounter(void);
COIACCESSAPI uint64_t COIPerfGetCycleFrequency(void);

#ifdef __cplusplus
}
#endif

#endif
