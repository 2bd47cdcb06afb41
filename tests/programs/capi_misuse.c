// The operations of snapify.h out of turn and with arguments that make no sense: a result and words each, never a crash nor a
// thread that hangs; and the process goes on.
//
// usage: capi_misuse SINK DIRECTORY
#include "coi.h"
#include <errno.h>
#include <semaphore.h>
#include <snapify.h>
#include <unistd.h>

#define SNAPIFY(result, call)                                                                                            \
    do {                                                                                                                 \
        snapify_result got = (call);                                                                                     \
        if (got != (result)) {                                                                                           \
            fprintf(stderr, "line %d: %s is %s: %s\n", __LINE__, #call, snapify_result_name(got), snapify_error());     \
            exit(1);                                                                                                     \
        }                                                                                                                \
        if (got != SNAPIFY_SUCCESS && (!*snapify_error() || !strstr(snapify_error(), "snapify_")))                       \
            CHECK(!"words");                                                                                             \
    } while (0)

static COIPIPELINE pipeline;
static COIFUNCTION echo;

static void goes_on(void)
{
    static int number;
    int left = 0;
    number++;
    OK(COIPipelineRunFunction(pipeline, echo, 0, NULL, NULL, 0, NULL, &number, 4, &left, 4, NULL));
    CHECK(left == number);
}

static void all(snapify_result result, snapify_t *s)
{
    SNAPIFY(result, snapify_pause(s));
    SNAPIFY(result, snapify_capture(s, false));
    SNAPIFY(result, snapify_capture(s, true));
    SNAPIFY(result, snapify_resume(s));
    SNAPIFY(result, snapify_restore(s, 0));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    COIPROCESS process = start(argv[1], 0);
    OK(COIPipelineCreate(process, NULL, 0, &pipeline));
    echo = function(process, "echo");
    char path[512], file[600];
    snprintf(path, sizeof path, "%s/images", argv[2]);

    // No snapshot, no path, no process.
    all(SNAPIFY_INVALID_ARGUMENT, NULL);
    SNAPIFY(SNAPIFY_INVALID_ARGUMENT, snapify_wait(NULL));
    snapify_t s = {.m_process = process};
    all(SNAPIFY_INVALID_ARGUMENT, &s);
    s.m_snapshot_path = "";
    all(SNAPIFY_INVALID_ARGUMENT, &s);
    s.m_snapshot_path = path;
    COIPROCESS wrong[] = {NULL, (COIPROCESS)1, COI_PROCESS_SOURCE, (COIPROCESS)pipeline, (COIPROCESS)&s};
    for (int i = 0; i < 5; i++) {
        s.m_process = wrong[i];
        all(SNAPIFY_INVALID_PROCESS, &s);
        CHECK(snapify_device(wrong[i]) == -1);
    }
    s.m_process = process;
    CHECK(snapify_device(process) == 0);

    // Out of turn: of a running process.
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_capture(&s, false));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_wait(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_resume(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_restore(&s, 0));
    goes_on();

    // A directory that cannot be written to.
    snapify_t bad = {.m_snapshot_path = "/proc/nowhere", .m_process = process};
    SNAPIFY(SNAPIFY_FILE_ERROR, snapify_pause(&bad));
    CHECK(strstr(snapify_error(), "/proc/nowhere"));
    goes_on();

    // Of a paused one.
    SNAPIFY(SNAPIFY_SUCCESS, snapify_pause(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_pause(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_wait(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_restore(&s, 0));
    SNAPIFY(SNAPIFY_FILE_ERROR, snapify_capture(&bad, true));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_capture(&s, false));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_wait(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_wait(&s));
    // Again, and not waited for by the function but by the semaphore.
    SNAPIFY(SNAPIFY_SUCCESS, snapify_capture(&s, false));
    while (sem_wait(&s.m_sem) != 0)
        CHECK(errno == EINTR);
    SNAPIFY(SNAPIFY_SUCCESS, snapify_wait(&s));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_resume(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_resume(&s));
    goes_on();

    // Of one that is swapped out.
    SNAPIFY(SNAPIFY_SUCCESS, snapify_pause(&s));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_capture(&s, true));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_wait(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_pause(&s));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_capture(&s, true));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_resume(&s));
    SNAPIFY(SNAPIFY_NO_SUCH_CARD, snapify_restore(&s, 1));
    SNAPIFY(SNAPIFY_NO_SUCH_CARD, snapify_restore(&s, -1));
    SNAPIFY(SNAPIFY_FILE_ERROR, snapify_restore(&bad, 0));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_restore(&s, 0));
    SNAPIFY(SNAPIFY_OUT_OF_TURN, snapify_restore(&s, 0));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_resume(&s));
    goes_on();

    // An image that is damaged: the process stays swapped out, and comes back with the right one.
    SNAPIFY(SNAPIFY_SUCCESS, snapify_pause(&s));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_capture(&s, true));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_wait(&s));
    snprintf(file, sizeof file, "cd %s/offload-* && cp pages.snap good && head -c 5000 /dev/zero > pages.snap", path);
    CHECK(system(file) == 0);
    SNAPIFY(SNAPIFY_FAILED, snapify_restore(&s, 0));
    snprintf(file, sizeof file, "cd %s/offload-* && mv good pages.snap", path);
    CHECK(system(file) == 0);
    SNAPIFY(SNAPIFY_SUCCESS, snapify_restore(&s, 0));
    SNAPIFY(SNAPIFY_SUCCESS, snapify_resume(&s));
    goes_on();

    // One that has died.
    COIPIPELINE last;
    OK(COIPipelineCreate(process, NULL, 0, &last));
    EXPECT(COI_PROCESS_DIED,
           COIPipelineRunFunction(last, function(process, "crash"), 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL));
    COIEVENT none;
    OK(COIEventRegisterUserEvent(&none));
    SNAPIFY(SNAPIFY_PROCESS_DIED, snapify_pause(&s));
    SNAPIFY(SNAPIFY_PROCESS_DIED, snapify_restore(&s, 0));
    OK(COIProcessDestroy(process, -1, 0, NULL, NULL));
    SNAPIFY(SNAPIFY_INVALID_PROCESS, snapify_pause(&s));
    printf("digest done\n");
    return 0;
}
