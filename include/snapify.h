/* Snapshots of offload processes from inside the application: the five operations of "Snapify: Capturing Snapshots of
 * Offload Applications on Xeon Phi Manycore Processors" (table 1), on processes that the application has created by COI.
 * See snapify(3).
 *
 *   snapshot:   snapify_pause, snapify_capture(false), snapify_wait, snapify_resume
 *   swap out:   snapify_pause, snapify_capture(true), snapify_wait
 *   swap in:    snapify_restore, snapify_resume
 *
 * Any thread may call any of them at any time; out of turn they are refused, and change nothing. While a process is paused or
 * swapped out, threads that need it wait, and all others go on. Its handle, its pipelines, functions and buffers stay what
 * they are, whatever card it is on. */
#ifndef SNAPIFY_H
#define SNAPIFY_H

#include <coi_source.h>
#include <semaphore.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The names of the paper. */
typedef struct coiprocess COIProcess;

/* A snapshot of an offload process. The caller sets the path and the process. */
typedef struct {
    /* The directory for its files; made if it is not there. */
    char *m_snapshot_path;
    /* Posted when a capture is complete: for callers that wait for it by other means than snapify_wait. */
    sem_t m_sem;
    /* The process. */
    COIProcess *m_process;
} snapify_t;

/* What the operations return. A caller that ignores it has the paper's interface. */
typedef enum snapify_result {
    SNAPIFY_SUCCESS = 0,
    /* A null pointer, or no path. */
    SNAPIFY_INVALID_ARGUMENT,
    /* No such process. */
    SNAPIFY_INVALID_PROCESS,
    /* Not now: the process is not in the state that the operation needs. */
    SNAPIFY_OUT_OF_TURN,
    /* There is no such card. */
    SNAPIFY_NO_SUCH_CARD,
    /* The files cannot be written or read. */
    SNAPIFY_FILE_ERROR,
    /* The process has died. */
    SNAPIFY_PROCESS_DIED,
    /* Anything else: a full card, a damaged image. */
    SNAPIFY_FAILED
} snapify_result;

/* Drains all channels between host and process and keeps them empty (section 4.1). Functions that are running run on; their
 * results wait. */
snapify_result snapify_pause(snapify_t *snapshot);

/* Begins to save a paused process; does not wait. With `terminate` the process ends when it is saved, and its card's memory
 * is free: it is swapped out. */
snapify_result snapify_capture(snapify_t *snapshot, bool terminate);

/* Waits until the capture is complete, and tells what came of it. */
snapify_result snapify_wait(snapify_t *snapshot);

/* Lets a paused or restored process go on, and all who wait for it. Waits for the end of a capture. */
snapify_result snapify_resume(snapify_t *snapshot);

/* Rebuilds a process that is swapped out on a card, which may be another one. It goes on with snapify_resume. */
snapify_result snapify_restore(snapify_t *snapshot, int device);

/* The card that a process is on (the paper's GetDeviceId); -1 if there is no such process. */
int snapify_device(COIProcess *process);

/* Why the last call of this thread that failed has done so, in words; of this interface or of COI. Valid until the next call
 * that fails. */
const char *snapify_error(void);

/* The name of a result, "SNAPIFY_SUCCESS" and so on. */
const char *snapify_result_name(snapify_result result);

#ifdef __cplusplus
}
#endif

#endif
