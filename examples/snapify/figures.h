// Figures 5, 6 and 7 of "Snapify: Capturing Snapshots of Offload Applications on Xeon Phi Manycore Processors", as functions
// that an application calls. They differ from the paper's in that they look at what the operations return.
#include <snapify.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static inline int told(snapify_result result)
{
    if (result != SNAPIFY_SUCCESS)
        fprintf(stderr, "%s: %s\n", snapify_result_name(result), snapify_error());
    return result == SNAPIFY_SUCCESS;
}

// Figure 6: the process leaves its card, whose memory is free then. Null if it did not; it goes on in this case.
static inline snapify_t *snapify_swapout(const char *path, COIProcess *proc)
{
    snapify_t *snapshot = calloc(1, sizeof *snapshot);
    snapshot->m_snapshot_path = strdup(path);
    snapshot->m_process = proc;
    if (!told(snapify_pause(snapshot)))
        goto failed;
    if (!told(snapify_capture(snapshot, true)) || !told(snapify_wait(snapshot))) {
        told(snapify_resume(snapshot));
        goto failed;
    }
    return snapshot;
failed:
    free(snapshot->m_snapshot_path);
    free(snapshot);
    return NULL;
}

// Figure 6: it comes back on a card, any with enough memory. Null if it did not; it stays swapped out in this case.
static inline COIProcess *snapify_swapin(snapify_t *snapshot, int device)
{
    COIProcess *ret;
    if (!told(snapify_restore(snapshot, device)) || !told(snapify_resume(snapshot)))
        return NULL;
    ret = snapshot->m_process;
    free(snapshot->m_snapshot_path);
    free(snapshot);
    return ret;
}

// Figure 7: it moves to another card.
static inline COIProcess *snapify_migration(COIProcess *proc, int device_to, const char *path)
{
    int device_from = snapify_device(proc);
    snapify_t *snapshot = snapify_swapout(path, proc);
    if (!snapshot)
        return NULL;
    COIProcess *moved = snapify_swapin(snapshot, device_to);
    // Where it came from it has room.
    return moved ? moved : snapify_swapin(snapshot, device_from);
}

// Saves this process, and with it all offload processes, by `snapify checkpoint`: what cr_checkpoint() of BLCR is in the
// paper. Returns 0 where the original goes on, 1 in a restarted one, and -1 if it failed. The tool must not be a descendant of
// what it saves: a child starts it and ends.
static inline int cr_checkpoint(const char *directory)
{
    char before[64], now[64], number[32], result[512];
    ssize_t length = readlink("/proc/self/ns/pid", before, sizeof before - 1);
    before[length < 0 ? 0 : length] = 0;
    snprintf(number, sizeof number, "%d", (int)getpid());
    snprintf(result, sizeof result, "%s.result", directory);
    unlink(result);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        return -1;
    if (child == 0) {
        // This one is not the application's any more: no output, and nobody's child as soon as its parent has ended.
        if (fork() == 0) {
            setsid();
            execlp("sh", "sh", "-c",
                   "exec </dev/null >\"$2.log\" 2>&1; snapify checkpoint \"$1\" \"$2\"; echo $? >\"$2.new\"; "
                   "mv \"$2.new\" \"$2.result\"",
                   "sh", number, directory, NULL);
            _exit(127);
        }
        _exit(0);
    }
    while (waitpid(child, NULL, 0) < 0)
        ;
    for (;;) {
        // A restarted process is in a namespace of its own.
        length = readlink("/proc/self/ns/pid", now, sizeof now - 1);
        now[length < 0 ? 0 : length] = 0;
        if (strcmp(before, now) != 0)
            return 1;
        FILE *file = fopen(result, "r");
        if (file) {
            int status = 1;
            if (fscanf(file, "%d", &status) != 1)
                status = 1;
            fclose(file);
            return status == 0 ? 0 : -1;
        }
        usleep(1000);
    }
}

// Figure 5: the callback that a checkpoint is taken by. The paper saves the offload process here and the host process by
// cr_checkpoint(), and puts them together again when it restarts. Here the latter saves all processes of the application, at one
// consistent instant, and a restart brings all of them back: there is nothing to be restored, and the handle is valid. The
// image that the callback itself takes is one of the offload process alone.
static inline int snapify_blcr_callback(void *args, const char *directory)
{
    snapify_t *snapshot = args;
    if (!told(snapify_pause(snapshot)))
        return -1;
    int saved = told(snapify_capture(snapshot, false)) && told(snapify_wait(snapshot));
    if (!told(snapify_resume(snapshot)) || !saved)
        return -1;
    return cr_checkpoint(directory);
}
