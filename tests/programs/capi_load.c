// Snapshots, swaps and moves of a process while threads of the host keep it busy: functions in pipelines, transfers, buffers
// that come and go. Nothing is lost, and nothing comes twice.
//
// usage: capi_load SINK DIRECTORY|- ROUNDS
#include "coi.h"
#include <pthread.h>
#include <snapify.h>

enum { THREADS = 4, WORDS = 4096, BYTES = WORDS * 8 };

static COIPROCESS process;
static volatile int running = 1;
static uint64_t digests[THREADS];

static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument;
    COIPIPELINE pipeline;
    OK(COIPipelineCreate(process, NULL, 0, &pipeline));
    COIFUNCTION step = function(process, "step"), echo = function(process, "echo");
    const COI_ACCESS_FLAGS access[] = {COI_SINK_READ, COI_SINK_WRITE};
    static uint64_t words[THREADS][WORDS];
    for (int i = 0; i < WORDS; i++)
        words[thread][i] = thread * WORDS + i;
    uint64_t digest = 0;
    for (uint64_t round = 0; running || round < 50; round++) {
        COIBUFFER buffer[2];
        OK(COIBufferCreate(BYTES, COI_BUFFER_NORMAL, 0, words[thread], 1, &process, &buffer[0]));
        OK(COIBufferCreate(BYTES, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &buffer[1]));
        uint64_t left[2], asked = round, answered = 0;
        COIEVENT done;
        OK(COIPipelineRunFunction(pipeline, step, 2, buffer, access, 0, NULL, &round, 8, left, 16, &done));
        OK(COIPipelineRunFunction(pipeline, echo, 0, NULL, NULL, 1, &done, &asked, 8, &answered, 8, NULL));
        CHECK(answered == asked);
        OK(COIBufferRead(buffer[1], 0, words[thread], BYTES, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
        uint64_t sum = 0;
        for (int i = 0; i < WORDS; i++)
            sum += words[thread][i] * (uint64_t)(i + 1);
        // The function added up the sums of its rounds: the last of them is what is left.
        CHECK(left[0] != 0);
        if (round < 50)
            digest = digest * 31 + left[0] + sum;
        for (int k = 0; k < 2; k++)
            OK(COIBufferDestroy(buffer[k]));
    }
    OK(COIPipelineDestroy(pipeline));
    digests[thread] = digest;
    return NULL;
}

static void fine(snapify_result result, int line)
{
    if (result != SNAPIFY_SUCCESS) {
        fprintf(stderr, "line %d: %s: %s\n", line, snapify_result_name(result), snapify_error());
        exit(1);
    }
}
#define FINE(call) fine(call, __LINE__)

int main(int argc, char **argv)
{
    uint32_t cards;
    if (argc != 4)
        return 2;
    OK(COIEngineGetCount(COI_DEVICE_MIC, &cards));
    process = start(argv[1], 0);
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, work, (void *)(intptr_t)t) == 0);
    for (int round = 0; strcmp(argv[2], "-") != 0 && round < atoi(argv[3]); round++) {
        snapify_t s = {.m_snapshot_path = argv[2], .m_process = process};
        bool away = round % 3 != 0;
        FINE(snapify_pause(&s));
        FINE(snapify_capture(&s, away));
        FINE(snapify_wait(&s));
        if (away)
            FINE(snapify_restore(&s, (snapify_device(process) + round) % cards));
        FINE(snapify_resume(&s));
    }
    running = 0;
    uint64_t digest = 0;
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        digest = digest * 31 + digests[t];
    }
    OK(COIProcessDestroy(process, -1, 0, NULL, NULL));
    printf("digest %016lx\n", digest);
    return 0;
}
