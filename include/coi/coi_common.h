/* COI, the Coprocessor Offload Infrastructure, on Snapify's cards: what host ("source") and card ("sink") have in common.
 *
 * Names, types, values and meanings are those of COI, so that a program written for it compiles and runs; which part of
 * COI there is, and where it behaves differently, is told in docs/coi.md and coi(7). */
#ifndef SNAPIFY_COI_COMMON_H
#define SNAPIFY_COI_COMMON_H

#include <stdint.h>
#include <wchar.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks functions of this interface, and functions of a sink program that the host looks up by name. The program must be
 * linked with -rdynamic, too. */
#define COIACCESSAPI __attribute__((visibility("default")))
#define COINATIVELIBEXPORT __attribute__((visibility("default")))
#ifdef __cplusplus
#define COINATIVEPROCESSEXPORT extern "C" __attribute__((visibility("default")))
#else
#define COINATIVEPROCESSEXPORT __attribute__((visibility("default")))
#endif

/* Handles. They stay valid over checkpoint and restart, swap and migration. */
typedef struct coiprocess *COIPROCESS;
typedef struct coipipeline *COIPIPELINE;
typedef struct coifunction *COIFUNCTION;
typedef struct coiengine *COIENGINE;
typedef struct coibuffer *COIBUFFER;
typedef struct coilibrary *COILIBRARY;
typedef struct coimapinst *COIMAPINSTANCE;

/* An event is a value. */
typedef struct {
    uint64_t opaque[2];
} COIEVENT;

/* A set of hardware threads. */
typedef uint64_t COI_CPU_MASK[16];

typedef wchar_t coi_wchar_t;

/* What functions return. */
typedef enum COIRESULT {
    COI_SUCCESS = 0,
    COI_ERROR,
    COI_NOT_INITIALIZED,
    COI_ALREADY_INITIALIZED,
    COI_ALREADY_EXISTS,
    COI_DOES_NOT_EXIST,
    COI_INVALID_POINTER,
    COI_OUT_OF_RANGE,
    COI_NOT_SUPPORTED,
    COI_TIME_OUT_REACHED,
    COI_MEMORY_OVERLAP,
    COI_ARGUMENT_MISMATCH,
    COI_SIZE_MISMATCH,
    COI_OUT_OF_MEMORY,
    COI_INVALID_HANDLE,
    COI_RETRY,
    COI_RESOURCE_EXHAUSTED,
    COI_ALREADY_LOCKED,
    COI_NOT_LOCKED,
    COI_MISSING_DEPENDENCY,
    COI_UNDEFINED_SYMBOL,
    COI_PENDING,
    COI_BINARY_AND_HARDWARE_MISMATCH,
    COI_PROCESS_DIED,
    COI_INVALID_FILE,
    COI_EVENT_CANCELED,
    COI_VERSION_MISMATCH,
    COI_BAD_PORT,
    COI_AUTHENTICATION_FAILURE,
    COI_COMM_NOT_INITIALIZED,
    COI_INCORRECT_FORMAT,
    COI_NUM_RESULTS
} COIRESULT;

/* Kinds of engines. A card is a COI_DEVICE_MIC. */
typedef enum {
    COI_DEVICE_INVALID = 0,
    COI_DEVICE_SOURCE,
    COI_DEVICE_MIC,
    COI_DEVICE_DEPRECATED_0,
    COI_DEVICE_KNC,
    COI_DEVICE_KNL,
    COI_DEVICE_MAX
} COI_DEVICE_TYPE;

/* The same under older names. */
typedef COI_DEVICE_TYPE COI_ISA_TYPE;
#define COI_ISA_INVALID COI_DEVICE_INVALID
#define COI_ISA_x86_64 COI_DEVICE_SOURCE
#define COI_ISA_MIC COI_DEVICE_MIC
#define COI_ISA_KNC COI_DEVICE_KNC

#define COI_MAX_FILE_NAME_LENGTH 256
#define COI_MAX_FUNCTION_NAME_LENGTH 256

/* Flags for loading libraries: those of dlopen(3). */
#define COI_LOADLIBRARY_LOCAL 0x00000
#define COI_LOADLIBRARY_LAZY 0x00001
#define COI_LOADLIBRARY_NOW 0x00002
#define COI_LOADLIBRARY_NOLOAD 0x00004
#define COI_LOADLIBRARY_DEEPBIND 0x00008
#define COI_LOADLIBRARY_GLOBAL 0x00100
#define COI_LOADLIBRARY_NODELETE 0x01000
#define COI_LOADLIBRARY_V1_FLAGS (COI_LOADLIBRARY_GLOBAL | COI_LOADLIBRARY_NOW)

/* Signals a user event: on the host, or on the card with an event that the host has passed there as data. Only the first
 * time counts. COI_INVALID_HANDLE if it is no registered user event (told on the host only). */
COIACCESSAPI COIRESULT COIEventSignalUserEvent(COIEVENT event);

#ifdef __cplusplus
}
#endif

#endif
