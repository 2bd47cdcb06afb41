// Handles that are none, pointers that lead nowhere, files that are not what they should be: an error each, never a crash.
//
// usage: coi_misuse SINK
#include "coi.h"
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    uintptr_t wrong[] = {0, 1, 16, (uintptr_t)-1, (uintptr_t)-2, (uintptr_t)argv, 1ull << 40, (3ull << 40) | 16};
    uint64_t number;
    uint32_t count;
    char bytes[16] = "";
    void *data;
    COIENGINE engine;
    COIPROCESS process = start(argv[1], 0), other;
    COIPIPELINE pipeline;
    COIFUNCTION echo = function(process, "echo"), found;
    COIBUFFER buffer;
    COIEVENT event;
    COIMAPINSTANCE map;
    COILIBRARY library;
    COI_ENGINE_INFO info;
    const char *name = "echo";
    OK(COIEngineGetHandle(COI_DEVICE_MIC, 0, &engine));
    OK(COIPipelineCreate(process, NULL, 0, &pipeline));
    OK(COIBufferCreate(sizeof bytes, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &buffer));
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        COIPROCESS p = (COIPROCESS)wrong[i];
        COIPIPELINE l = (COIPIPELINE)wrong[i];
        COIBUFFER b = (COIBUFFER)wrong[i];
        COIEVENT e = {{wrong[i], wrong[i]}};
        EXPECT(COI_INVALID_HANDLE, COIEngineGetInfo((COIENGINE)wrong[i], sizeof info, &info));
        EXPECT(COI_INVALID_HANDLE,
               COIProcessCreateFromFile((COIENGINE)wrong[i], argv[1], 0, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
        EXPECT(COI_INVALID_HANDLE, COIProcessDestroy(p, -1, 0, NULL, NULL));
        EXPECT(COI_INVALID_HANDLE, COIProcessGetFunctionHandles(p, 1, &name, &found));
        EXPECT(COI_INVALID_HANDLE, COIProcessLoadLibraryFromFile(p, argv[1], "x", NULL, 0, &library));
        EXPECT(COI_INVALID_HANDLE, COIProcessUnloadLibrary(process, (COILIBRARY)wrong[i]));
        EXPECT(COI_INVALID_HANDLE, COIPipelineCreate(p, NULL, 0, &l));
        l = (COIPIPELINE)wrong[i];
        EXPECT(COI_INVALID_HANDLE, COIPipelineDestroy(l));
        EXPECT(COI_INVALID_HANDLE, COIPipelineRunFunction(l, echo, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL));
        if (wrong[i] != (uintptr_t)echo)
            EXPECT(COI_INVALID_HANDLE, COIPipelineRunFunction(pipeline, (COIFUNCTION)wrong[i], 0, NULL, NULL, 0, NULL, NULL,
                                                              0, NULL, 0, NULL));
        const COI_ACCESS_FLAGS reads = COI_SINK_READ;
        EXPECT(COI_INVALID_HANDLE,
               COIPipelineRunFunction(pipeline, echo, 1, &b, &reads, 0, NULL, NULL, 0, NULL, 0, NULL));
        EXPECT(COI_INVALID_HANDLE,
               COIPipelineRunFunction(pipeline, echo, 0, NULL, NULL, 1, &e, NULL, 0, NULL, 0, NULL));
        EXPECT(COI_INVALID_HANDLE, COIBufferCreate(1, COI_BUFFER_NORMAL, 0, NULL, 1, &p, &buffer));
        EXPECT(COI_INVALID_HANDLE, COIBufferDestroy(b));
        EXPECT(COI_INVALID_HANDLE, COIBufferWrite(b, 0, bytes, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
        EXPECT(COI_INVALID_HANDLE, COIBufferMap(b, 0, 1, COI_MAP_READ_ONLY, 0, NULL, NULL, &map, &data));
        EXPECT(COI_INVALID_HANDLE, COIBufferUnmap((COIMAPINSTANCE)wrong[i], 0, NULL, NULL));
        EXPECT(COI_INVALID_HANDLE, COIBufferGetSinkAddress(b, &number));
        EXPECT(COI_INVALID_HANDLE, COIEventWait(1, &e, 0, 1, NULL, NULL));
        EXPECT(COI_INVALID_HANDLE, COIEventSignalUserEvent(e));
        EXPECT(COI_INVALID_HANDLE, COIEventUnregisterUserEvent(e));
    }
    EXPECT(COI_INVALID_POINTER, COIEngineGetCount(COI_DEVICE_MIC, NULL));
    EXPECT(COI_INVALID_POINTER, COIEngineGetHandle(COI_DEVICE_MIC, 0, NULL));
    EXPECT(COI_INVALID_POINTER, COIEngineGetInfo(engine, sizeof info, NULL));
    EXPECT(COI_INVALID_POINTER, COIProcessCreateFromFile(engine, NULL, 0, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    EXPECT(COI_INVALID_POINTER, COIProcessCreateFromFile(engine, argv[1], 0, NULL, 1, NULL, 1, NULL, 0, NULL, NULL));
    EXPECT(COI_ARGUMENT_MISMATCH, COIProcessCreateFromFile(engine, argv[1], 2, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    EXPECT(COI_OUT_OF_RANGE, COIProcessCreateFromFile(engine, argv[1], -1, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    EXPECT(COI_INVALID_POINTER, COIPipelineCreate(process, NULL, 0, NULL));
    EXPECT(COI_INVALID_POINTER, COIBufferCreate(1, COI_BUFFER_NORMAL, 0, NULL, 1, &process, NULL));
    EXPECT(COI_INVALID_POINTER, COIBufferWrite(buffer, 0, NULL, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_INVALID_POINTER, COIBufferRead(buffer, 0, NULL, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_OUT_OF_RANGE, COIBufferRead(buffer, 0, bytes, 1, (COI_COPY_TYPE)77, 0, NULL, NULL));
    EXPECT(COI_OUT_OF_RANGE, COIBufferRead(buffer, (uint64_t)-1, bytes, 2, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_INVALID_POINTER, COIEventRegisterUserEvent(NULL));
    OK(COIEventRegisterUserEvent(&event));
    EXPECT(COI_INVALID_POINTER, COIEventRegisterCallback(event, NULL, NULL, 0));
    CHECK(strstr(snapify_error(), "COI_INVALID_POINTER"));

    // Files.
    EXPECT(COI_DOES_NOT_EXIST, COIProcessCreateFromFile(engine, "no/such", 0, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    CHECK(strstr(snapify_error(), "no/such"));
    EXPECT(COI_INVALID_FILE, COIProcessCreateFromFile(engine, "/", 0, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    EXPECT(COI_INVALID_FILE, COIProcessCreateFromFile(engine, "/etc/passwd", 0, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    // One that knows nothing of COI ends without having reported.
    EXPECT(COI_PROCESS_DIED, COIProcessCreateFromFile(engine, "/bin/true", 0, NULL, 1, NULL, 1, NULL, 0, NULL, &other));
    EXPECT(COI_RESOURCE_EXHAUSTED,
           COIProcessCreateFromFile(engine, argv[1], 0, NULL, 1, NULL, 1, NULL, 1ull << 40, NULL, &other));
    EXPECT(COI_ARGUMENT_MISMATCH, COIProcessCreateFromMemory(engine, "x", argv, 8, 0, NULL, 1, NULL, 1, NULL, 0, NULL, NULL,
                                                             5, &other));

    // A child of fork has no cards; its parent keeps them.
    pid_t child = fork();
    if (child == 0)
        _exit(COIEngineGetCount(COI_DEVICE_MIC, &count) == COI_NOT_INITIALIZED ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    int given = 5, left = 0;
    OK(COIPipelineRunFunction(pipeline, echo, 0, NULL, NULL, 0, NULL, &given, 4, &left, 4, NULL));
    CHECK(left == 5);
    // The process is not destroyed: it ends with this one.
    printf("digest done\n");
    return 0;
}
