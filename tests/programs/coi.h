// What the programs of these tests that use COI have in common.
#include <source/COIBuffer_source.h>
#include <source/COIEngine_source.h>
#include <source/COIEvent_source.h>
#include <source/COIPipeline_source.h>
#include <source/COIProcess_source.h>
#include <snapify.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


// Ends the program unless a call returns a certain result.
#define EXPECT(result, call)                                                                                             \
    do {                                                                                                                 \
        COIRESULT got = (call);                                                                                          \
        if (got != (result)) {                                                                                           \
            fprintf(stderr, "line %d: %s is %s, not %s: %s\n", __LINE__, #call, COIResultGetName(got),                  \
                    COIResultGetName(result), snapify_error());                                                          \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)
#define OK(call) EXPECT(COI_SUCCESS, call)
#define CHECK(condition)                                                                                                 \
    do {                                                                                                                 \
        if (!(condition)) {                                                                                              \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition);                                                  \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

// A process on a card that runs the program `sink`.
static inline COIPROCESS start(const char *sink, uint32_t card)
{
    COIENGINE engine;
    COIPROCESS process;
    OK(COIEngineGetHandle(COI_DEVICE_MIC, card, &engine));
    OK(COIProcessCreateFromFile(engine, sink, 0, NULL, 1, NULL, 1, NULL, 0, NULL, &process));
    return process;
}

static inline COIFUNCTION function(COIPROCESS process, const char *name)
{
    COIFUNCTION found;
    OK(COIProcessGetFunctionHandles(process, 1, &name, &found));
    return found;
}
