// Processes on cards that die: all that waits for them is told, and others go on.
//
// usage: coi_death SINK
#include "coi.h"

static void dies(const char *sink, const char *how, uint32_t signal, int status)
{
    COIPROCESS process = start(sink, 0), other = start(sink, 0);
    COIPIPELINE pipeline[2], beside;
    OK(COIPipelineCreate(process, NULL, 0, &pipeline[0]));
    OK(COIPipelineCreate(process, NULL, 0, &pipeline[1]));
    OK(COIPipelineCreate(other, NULL, 0, &beside));
    COIFUNCTION echo = function(process, "echo"), there = function(other, "echo");
    COIFUNCTION wait = function(process, "pause_ms"), end = function(process, how);
    COIBUFFER buffer, shared;
    static char bytes[8192] = "content";
    COIPROCESS both[] = {process, other};
    OK(COIBufferCreate(sizeof bytes, COI_BUFFER_NORMAL, 0, bytes, 1, &process, &buffer));
    OK(COIBufferCreate(sizeof bytes, COI_BUFFER_NORMAL, 0, bytes, 2, both, &shared));

    // One function runs, one is queued behind it, and one waits for an event that nobody will signal.
    COIEVENT never, done[4];
    uint32_t long_time = 1000000000;
    int given = 3, left = 0;
    OK(COIEventRegisterUserEvent(&never));
    OK(COIPipelineRunFunction(pipeline[0], wait, 0, NULL, NULL, 0, NULL, &long_time, 4, NULL, 0, &done[0]));
    OK(COIPipelineRunFunction(pipeline[0], echo, 0, NULL, NULL, 0, NULL, &given, 4, &left, 4, &done[1]));
    OK(COIPipelineRunFunction(pipeline[1], end, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, &done[2]));
    OK(COIPipelineRunFunction(pipeline[1], echo, 0, NULL, NULL, 1, &never, &given, 4, &left, 4, &done[3]));
    for (int i = 0; i < 4; i++)
        EXPECT(COI_PROCESS_DIED, COIEventWait(1, &done[i], -1, 1, NULL, NULL));
    EXPECT(COI_PROCESS_DIED, COIEventWait(4, done, -1, 1, NULL, NULL));

    // What comes later.
    const char *name = "sum";
    COIFUNCTION found;
    COIPIPELINE another;
    COIBUFFER made;
    COIENGINE engine;
    COILIBRARY library;
    const COI_ACCESS_FLAGS reads = COI_SINK_READ;
    EXPECT(COI_PROCESS_DIED, COIPipelineRunFunction(pipeline[0], echo, 0, NULL, NULL, 0, NULL, &given, 4, &left, 4, NULL));
    EXPECT(COI_PROCESS_DIED, COIProcessGetFunctionHandles(process, 1, &name, &found));
    EXPECT(COI_PROCESS_DIED, COIPipelineCreate(process, NULL, 0, &another));
    EXPECT(COI_PROCESS_DIED, COIPipelineGetEngine(pipeline[0], &engine));
    EXPECT(COI_PROCESS_DIED, COIBufferCreate(10, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &made));
    EXPECT(COI_PROCESS_DIED, COIProcessLoadLibraryFromFile(process, sink, "x", NULL, 0, &library));
    EXPECT(COI_PROCESS_DIED, COIBufferWriteEx(buffer, process, 0, bytes, 8, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_PROCESS_DIED,
           COIBufferSetState(buffer, process, COI_BUFFER_VALID, COI_BUFFER_MOVE, 0, NULL, NULL));
    // What is valid here can still be read.
    static char back[8192];
    OK(COIBufferRead(buffer, 0, back, sizeof back, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    CHECK(strcmp(back, "content") == 0);

    // The other process on the same card does not mind, and takes the buffer that both had.
    uint64_t sum[3];
    OK(COIPipelineRunFunction(beside, there, 0, NULL, NULL, 0, NULL, &given, 4, &left, 4, NULL));
    CHECK(left == 3);
    OK(COIPipelineRunFunction(beside, function(other, "sum"), 1, &shared, &reads, 0, NULL, NULL, 0, sum, sizeof sum, NULL));
    CHECK(sum[2] == sizeof bytes);
    OK(COIBufferDestroy(buffer));
    OK(COIBufferDestroy(shared));
    OK(COIPipelineDestroy(pipeline[0]));
    int8_t returned = 0;
    uint32_t termination = 0;
    OK(COIProcessDestroy(process, -1, 0, &returned, &termination));
    CHECK(termination == signal && returned == status);
    OK(COIEventUnregisterUserEvent(never));
    OK(COIProcessDestroy(other, -1, 0, &returned, &termination));
    CHECK(termination == 0 && returned == 0);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    dies(argv[1], "crash", 11, 0);
    dies(argv[1], "leave", 0, 5);
    printf("digest done\n");
    return 0;
}
