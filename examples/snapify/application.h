// What the three applications compute: on a card, by COI, with memory there that the host knows nothing of.
#include "figures.h"

enum { WORDS = 1 << 18, BYTES = 8 * WORDS };

typedef struct {
    COIPROCESS process;
    COIPIPELINE pipeline;
    COIFUNCTION advance;
    COIBUFFER buffer;
} application;

static inline void must(COIRESULT result, const char *what)
{
    if (result != COI_SUCCESS) {
        fprintf(stderr, "%s: %s: %s\n", what, COIResultGetName(result), snapify_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)

static inline application begin(const char *sink, uint32_t card)
{
    application a;
    COIENGINE engine;
    const char *name = "advance";
    MUST(COIEngineGetHandle(COI_DEVICE_MIC, card, &engine));
    MUST(COIProcessCreateFromFile(engine, sink, 0, NULL, 1, NULL, 1, NULL, 0, NULL, &a.process));
    MUST(COIPipelineCreate(a.process, NULL, 0, &a.pipeline));
    MUST(COIProcessGetFunctionHandles(a.process, 1, &name, &a.advance));
    MUST(COIBufferCreate(BYTES, COI_BUFFER_NORMAL, 0, NULL, 1, &a.process, &a.buffer));
    return a;
}

// One step; tells a number that depends on all steps before.
static inline uint64_t step(application *a, uint64_t key)
{
    const COI_ACCESS_FLAGS access = COI_SINK_WRITE;
    uint64_t left;
    COIEVENT done;
    MUST(COIPipelineRunFunction(a->pipeline, a->advance, 1, &a->buffer, &access, 0, NULL, &key, sizeof key, &left,
                                sizeof left, &done));
    MUST(COIEventWait(1, &done, -1, 1, NULL, NULL));
    return left;
}

static inline int finish(application *a, uint64_t digest)
{
    static uint64_t words[WORDS];
    MUST(COIBufferRead(a->buffer, 0, words, BYTES, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    for (int i = 0; i < WORDS; i++)
        digest = digest * 31 + words[i];
    MUST(COIBufferDestroy(a->buffer));
    MUST(COIPipelineDestroy(a->pipeline));
    int8_t status;
    uint32_t termination;
    MUST(COIProcessDestroy(a->process, -1, 0, &status, &termination));
    if (status || termination)
        return 1;
    printf("digest %016lx\n", digest);
    return 0;
}
