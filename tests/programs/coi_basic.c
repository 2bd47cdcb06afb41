// Everything of COI that there is, on the cards of the program; it checks itself.
//
// usage: coi_basic SINK LIBRARY
#include "coi.h"
#include <pthread.h>
#include <unistd.h>

enum { SIZE = 100000 };

static const char *sink;

static void engines(void)
{
    uint32_t count = 0;
    OK(COIEngineGetCount(COI_DEVICE_MIC, &count));
    CHECK(count == 2);
    EXPECT(COI_DOES_NOT_EXIST, COIEngineGetCount(COI_DEVICE_INVALID, &count));
    EXPECT(COI_INVALID_POINTER, COIEngineGetCount(COI_DEVICE_MIC, NULL));
    COIENGINE engine;
    EXPECT(COI_OUT_OF_RANGE, COIEngineGetHandle(COI_DEVICE_MIC, 2, &engine));
    OK(COIEngineGetHandle(COI_DEVICE_MIC, 1, &engine));
    COI_ENGINE_INFO info;
    EXPECT(COI_SIZE_MISMATCH, COIEngineGetInfo(engine, 8, &info));
    OK(COIEngineGetInfo(engine, sizeof info, &info));
    CHECK(info.ISA == COI_DEVICE_MIC && info.NumThreads > 0 && info.PhysicalMemory >= 16 << 20);
    CHECK(info.DriverVersion[0] == L's');
    CHECK(COIPerfGetCycleFrequency() > 0 && COIPerfGetCycleCounter() > 0);
}

static void arguments_and_exit(void)
{
    COIENGINE engine;
    COIPROCESS process;
    OK(COIEngineGetHandle(COI_DEVICE_MIC, 0, &engine));
    const char *args[] = {"say", "-7"}, *env[] = {"GIVEN=42", NULL};
    fflush(stdout);
    setenv("INHERITED", "yes", 1);
    OK(COIProcessCreateFromFile(engine, sink, 2, args, 0, env, 1, NULL, 0, NULL, &process));
    int8_t status = 0;
    uint32_t termination = 99;
    EXPECT(COI_TIME_OUT_REACHED, COIProcessDestroy(process, 0, 0, &status, &termination));
    EXPECT(COI_ARGUMENT_MISMATCH, COIProcessDestroy(process, -1, 1, NULL, NULL));
    EXPECT(COI_OUT_OF_RANGE, COIProcessDestroy(process, -2, 0, NULL, NULL));
    OK(COIProcessDestroy(process, -1, 0, &status, &termination));
    CHECK(status == -7 && termination == 0);
    EXPECT(COI_INVALID_HANDLE, COIProcessDestroy(process, -1, 0, NULL, NULL));

    // The whole environment, and from memory; killed.
    FILE *file = fopen(sink, "rb");
    static char image[4 << 20];
    size_t bytes = fread(image, 1, sizeof image, file);
    fclose(file);
    OK(COIProcessCreateFromMemory(engine, "from/memory", image, bytes, 1, args, 1, env, 1, NULL, 0, NULL, sink, 0,
                                  &process));
    COIPIPELINE pipeline;
    OK(COIPipelineCreate(process, NULL, 0, &pipeline));
    COIEVENT done;
    uint32_t long_time = 1000000000;
    // Its main has run as far as to let functions run.
    OK(COIPipelineRunFunction(pipeline, function(process, "echo"), 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL));
    OK(COIPipelineRunFunction(pipeline, function(process, "pause_ms"), 0, NULL, NULL, 0, NULL, &long_time, 4, NULL, 0,
                              &done));
    OK(COIProcessDestroy(process, 0, 1, &status, &termination));
    CHECK(termination == 9);
    EXPECT(COI_PROCESS_DIED, COIEventWait(1, &done, -1, 1, NULL, NULL));
    EXPECT(COI_INVALID_HANDLE, COIPipelineDestroy(pipeline));

    // One that does not come as far as to be asked.
    const char *fails[] = {"fail"};
    OK(COIProcessCreateFromFile(engine, sink, 1, fails, 1, NULL, 0, NULL, 0, NULL, &process));
    OK(COIProcessDestroy(process, -1, 0, &status, &termination));
    CHECK(status == 9 && termination == 0);
}

static void functions(COIPROCESS process)
{
    const char *names[] = {"echo", "no_such_function", "sum"};
    COIFUNCTION found[3];
    EXPECT(COI_DOES_NOT_EXIST, COIProcessGetFunctionHandles(process, 3, names, found));
    CHECK(found[0] && !found[1] && found[2]);
    EXPECT(COI_OUT_OF_RANGE, COIProcessGetFunctionHandles(process, 0, names, found));

    COIPIPELINE pipeline;
    OK(COIPipelineCreate(process, NULL, 0, &pipeline));
    COIENGINE engine, same;
    OK(COIEngineGetHandle(COI_DEVICE_MIC, 0, &engine));
    OK(COIPipelineGetEngine(pipeline, &same));
    CHECK(engine == same);
    // Data of all lengths, also of one that does not fit the command ring.
    static char given[32768], left[32768];
    for (int i = 0; i < 32768; i++)
        given[i] = i * 7 + i / 256;
    for (int bytes = 1; bytes <= 32768; bytes = bytes * 2 + (bytes == 16384 ? 0 : 1)) {
        memset(left, 0, sizeof left);
        OK(COIPipelineRunFunction(pipeline, found[0], 0, NULL, NULL, 0, NULL, given, bytes, left, bytes, NULL));
        CHECK(memcmp(given, left, bytes) == 0);
    }
    OK(COIPipelineRunFunction(pipeline, found[0], 0, NULL, NULL, 0, NULL, given, 32768, left, 32768, NULL));
    CHECK(memcmp(given, left, 32768) == 0);
    EXPECT(COI_ARGUMENT_MISMATCH,
           COIPipelineRunFunction(pipeline, found[0], 0, NULL, NULL, 0, NULL, NULL, 5, NULL, 0, NULL));
    EXPECT(COI_ARGUMENT_MISMATCH,
           COIPipelineRunFunction(pipeline, found[0], 0, NULL, NULL, 0, NULL, NULL, 0, left, 0, NULL));
    EXPECT(COI_OUT_OF_RANGE,
           COIPipelineRunFunction(pipeline, found[0], 0, NULL, NULL, 0, NULL, given, 32769, NULL, 0, NULL));
    OK(COIPipelineDestroy(pipeline));

    // As many pipelines as there can be, and no more.
    COIPIPELINE many[65];
    for (int i = 0; i < 64; i++)
        OK(COIPipelineCreate(process, NULL, 0, &many[i]));
    EXPECT(COI_RESOURCE_EXHAUSTED, COIPipelineCreate(process, NULL, 0, &many[64]));
    for (int i = 0; i < 64; i++)
        OK(COIPipelineDestroy(many[i]));
    COI_CPU_MASK mask;
    OK(COIPipelineClearCPUMask(&mask));
    EXPECT(COI_OUT_OF_RANGE, COIPipelineCreate(process, mask, 0, &pipeline));
    OK(COIPipelineSetCPUMask(process, 1, 0, &mask));
    EXPECT(COI_OUT_OF_RANGE, COIPipelineCreate(process, mask, 100, &pipeline));
    OK(COIPipelineCreate(process, mask, 65536, &pipeline));
    OK(COIPipelineDestroy(pipeline));
}

static void fill(unsigned char *bytes, unsigned seed)
{
    for (int i = 0; i < SIZE; i++)
        bytes[i] = i * seed + i / 251;
}

static void buffers(COIPROCESS process, COIPROCESS other)
{
    static unsigned char bytes[SIZE], back[SIZE];
    COIPROCESS both[] = {process, other};
    COIPIPELINE pipeline[2];
    OK(COIPipelineCreate(process, NULL, 0, &pipeline[0]));
    OK(COIPipelineCreate(other, NULL, 0, &pipeline[1]));
    COIFUNCTION add[] = {function(process, "add"), function(other, "add")};
    COIFUNCTION sum[] = {function(process, "sum"), function(other, "sum")};
    COIBUFFER a, b;
    fill(bytes, 3);
    OK(COIBufferCreate(SIZE, COI_BUFFER_NORMAL, 0, bytes, 2, both, &a));
    OK(COIBufferCreate(SIZE, COI_BUFFER_NORMAL, 0, NULL, 1, both, &b));

    // To and fro: each change is seen by the next, wherever it is.
    const COI_ACCESS_FLAGS reads = COI_SINK_READ, writes = COI_SINK_WRITE;
    for (int i = 0; i < 6; i++) {
        unsigned char step = i + 1;
        OK(COIPipelineRunFunction(pipeline[i % 2], add[i % 2], 1, &a, &writes, 0, NULL, &step, 1, NULL, 0, NULL));
        for (int j = 0; j < SIZE; j++)
            bytes[j] += step;
        if (i == 3) {
            OK(COIBufferRead(a, 10, back, SIZE - 20, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
            CHECK(memcmp(back, bytes + 10, SIZE - 20) == 0);
            bytes[7] = 77;
            OK(COIBufferWrite(a, 7, bytes + 7, 1, COI_COPY_USE_CPU, 0, NULL, NULL));
        }
    }
    COIMAPINSTANCE map;
    void *seen;
    OK(COIBufferMap(a, 0, 0, COI_MAP_READ_WRITE, 0, NULL, NULL, &map, &seen));
    CHECK(memcmp(seen, bytes, SIZE) == 0);
    memset(seen, 1, 500);
    memset(bytes, 1, 500);
    EXPECT(COI_RETRY, COIPipelineRunFunction(pipeline[0], add[0], 1, &a, &writes, 0, NULL, "x", 1, NULL, 0, NULL));
    EXPECT(COI_RETRY, COIBufferDestroy(a));
    OK(COIBufferUnmap(map, 0, NULL, NULL));
    EXPECT(COI_INVALID_HANDLE, COIBufferUnmap(map, 0, NULL, NULL));
    uint64_t expected = 0, left[3];
    for (int j = 0; j < SIZE; j++)
        expected += bytes[j];
    OK(COIPipelineRunFunction(pipeline[1], sum[1], 1, &a, &reads, 0, NULL, NULL, 0, left, sizeof left, NULL));
    CHECK(left[0] == expected && left[1] == 1 && left[2] == SIZE);

    // Copies: from a card to another place, and between buffers.
    OK(COIBufferCopy(b, a, 100, 200, 5000, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    OK(COIBufferRead(b, 100, back, 5000, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    CHECK(memcmp(back, bytes + 200, 5000) == 0);
    EXPECT(COI_OUT_OF_RANGE, COIBufferCopy(b, a, SIZE - 10, 0, 11, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_MEMORY_OVERLAP, COIBufferCopy(a, a, 10, 0, 11, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_OUT_OF_RANGE, COIBufferRead(b, SIZE, back, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    EXPECT(COI_MISSING_DEPENDENCY,
           COIPipelineRunFunction(pipeline[1], add[1], 1, &b, &writes, 0, NULL, "x", 1, NULL, 0, NULL));

    // State: without moving, what is valid is what one says.
    uint64_t address;
    OK(COIBufferGetSinkAddress(b, &address));
    CHECK(address % 4096 == 0);
    memset(back, 9, SIZE);
    OK(COIBufferWriteEx(b, process, 0, back, SIZE, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    OK(COIBufferSetState(b, COI_PROCESS_SOURCE, COI_BUFFER_VALID, COI_BUFFER_NO_MOVE, 0, NULL, NULL));
    OK(COIBufferRead(b, 0, back, 200, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    CHECK(back[0] == 0);
    OK(COIBufferSetState(b, COI_PROCESS_SOURCE, COI_BUFFER_INVALID, COI_BUFFER_NO_MOVE, 0, NULL, NULL));
    OK(COIBufferSetState(b, COI_PROCESS_SOURCE, COI_BUFFER_VALID, COI_BUFFER_MOVE, 0, NULL, NULL));
    OK(COIBufferRead(b, 0, back, 200, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    CHECK(back[0] == 9);

    // Sections: every second column of some rows.
    static unsigned char grid[10][20], lines[4][5];
    for (int i = 0; i < 200; i++)
        grid[i / 20][i % 20] = i;
    arr_desc from = {(int64_t)grid, 2, {{20, 0, 2, 8, 2}, {1, 0, 5, 13, 2}, {0, 0, 0, 0, 0}}};
    arr_desc to = {64, 2, {{5, 0, 0, 3, 1}, {1, 0, 0, 4, 1}, {0, 0, 0, 0, 0}}};
    OK(COIBufferWriteMultiD(b, process, 0, &to, &from, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    OK(COIBufferRead(b, 64, lines, 20, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    for (int i = 0; i < 20; i++)
        CHECK(lines[i / 5][i % 5] == grid[2 + i / 5 * 2][5 + i % 5 * 2]);
    static unsigned char again[10][20];
    arr_desc here = {(int64_t)again, 2, {{20, 0, 2, 8, 2}, {1, 0, 5, 13, 2}, {0, 0, 0, 0, 0}}};
    OK(COIBufferReadMultiD(b, 0, &here, &to, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    CHECK(again[4][7] == grid[4][7] && again[4][8] == 0);
    OK(COIBufferDestroy(a));
    OK(COIBufferDestroy(b));
    EXPECT(COI_INVALID_HANDLE, COIBufferDestroy(b));

    // Memory of the program's own, here and there.
    memset(bytes, 2, SIZE);
    OK(COIBufferCreateFromMemory(SIZE, COI_BUFFER_NORMAL, 0, bytes, 1, both, &a));
    OK(COIPipelineRunFunction(pipeline[0], add[0], 1, &a, &writes, 0, NULL, "\3", 1, NULL, 0, NULL));
    OK(COIBufferMap(a, 0, SIZE, COI_MAP_READ_ONLY, 0, NULL, NULL, &map, &seen));
    CHECK(seen == bytes && bytes[0] == 5 && bytes[SIZE - 1] == 5);
    OK(COIBufferUnmap(map, 0, NULL, NULL));
    OK(COIBufferDestroy(a));
    void *there;
    OK(COIPipelineRunFunction(pipeline[0], function(process, "where"), 0, NULL, NULL, 0, NULL, NULL, 0, &there, 8, NULL));
    OK(COIBufferCreateFromMemory(64, COI_BUFFER_NORMAL, COI_SINK_MEMORY, there, 1, both, &a));
    OK(COIBufferRead(a, 0, back, 8, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
    CHECK(strcmp((char *)back, "initial") == 0);
    OK(COIBufferDestroy(a));

    // A buffer that a function keeps.
    int kept[3];
    OK(COIBufferCreate(SIZE, COI_BUFFER_NORMAL, 0, bytes, 1, both, &a));
    OK(COIPipelineRunFunction(pipeline[0], function(process, "keep"), 1, &a, &reads, 0, NULL, NULL, 0, kept, 4, NULL));
    CHECK(kept[0] == COI_SUCCESS);
    OK(COIBufferDestroy(a));
    OK(COIBufferCreate(SIZE, COI_BUFFER_NORMAL, 0, NULL, 1, both, &b));
    OK(COIPipelineRunFunction(pipeline[0], add[0], 1, &b, &writes, 0, NULL, "\1", 1, NULL, 0, NULL));
    OK(COIPipelineRunFunction(pipeline[0], function(process, "look_and_release"), 0, NULL, NULL, 0, NULL, NULL, 0, kept,
                              12, NULL));
    CHECK(kept[0] == 5 && kept[1] == COI_SUCCESS && kept[2] == COI_INVALID_HANDLE);
    OK(COIBufferDestroy(b));

    // Many buffers in one call.
    static COIBUFFER lots[3000];
    static COI_ACCESS_FLAGS access[3000];
    for (int i = 0; i < 3000; i++) {
        OK(COIBufferCreate(1 + i % 10, COI_BUFFER_NORMAL, 0, "\1\1\1\1\1\1\1\1\1\1", 1, both, &lots[i]));
        access[i] = COI_SINK_READ;
    }
    OK(COIPipelineRunFunction(pipeline[0], sum[0], 3000, lots, access, 0, NULL, NULL, 0, left, sizeof left, NULL));
    CHECK(left[0] == left[2] && left[1] == 3000 && left[2] == 300 * 55);
    for (int i = 0; i < 3000; i++)
        OK(COIBufferDestroy(lots[i]));

    EXPECT(COI_RESOURCE_EXHAUSTED,
           COIBufferCreate(1ull << 39, COI_BUFFER_NORMAL, COI_OPTIMIZE_HUGE_PAGE_SIZE, NULL, 1, both, &a));
    EXPECT(COI_OUT_OF_RANGE, COIBufferCreate(0, COI_BUFFER_NORMAL, 0, NULL, 1, both, &a));
    EXPECT(COI_NOT_SUPPORTED, COIBufferCreate(1, (COI_BUFFER_TYPE)3, 0, NULL, 1, both, &a));
    OK(COIPipelineDestroy(pipeline[0]));
    OK(COIPipelineDestroy(pipeline[1]));
}

static int order[4], called;

static void callback(COIEVENT event, const COIRESULT result, const void *user)
{
    (void)event;
    order[called++] = *(const int *)user * 100 + result;
}

static void *signal_later(void *event)
{
    usleep(20000);
    OK(COIEventSignalUserEvent(*(COIEVENT *)event));
    return NULL;
}

static void events(COIPROCESS process)
{
    COIEVENT user, other, done[3];
    OK(COIEventRegisterUserEvent(&user));
    OK(COIEventRegisterUserEvent(&other));
    EXPECT(COI_TIME_OUT_REACHED, COIEventWait(1, &user, 0, 1, NULL, NULL));
    EXPECT(COI_TIME_OUT_REACHED, COIEventWait(1, &user, 5, 1, NULL, NULL));
    EXPECT(COI_OUT_OF_RANGE, COIEventWait(0, &user, 0, 1, NULL, NULL));
    EXPECT(COI_OUT_OF_RANGE, COIEventWait(1, &user, -5, 1, NULL, NULL));
    EXPECT(COI_INVALID_POINTER, COIEventWait(1, NULL, 0, 1, NULL, NULL));
    COIEVENT two[] = {user, other};
    EXPECT(COI_ARGUMENT_MISMATCH, COIEventWait(2, two, 0, 0, NULL, NULL));

    // Functions that depend on an event, and in two pipelines on each other.
    COIPIPELINE pipeline[2];
    OK(COIPipelineCreate(process, NULL, 0, &pipeline[0]));
    OK(COIPipelineCreate(process, NULL, 0, &pipeline[1]));
    COIBUFFER buffer;
    OK(COIBufferCreate(4096, COI_BUFFER_OPENCL, 0, "", 1, &process, &buffer));
    const COI_ACCESS_FLAGS reads = COI_SINK_READ;
    COIFUNCTION echo = function(process, "echo");
    int left[2] = {0, 0}, one = 1, two_numbers[2] = {21, 22};
    OK(COIPipelineRunFunction(pipeline[0], echo, 0, NULL, NULL, 1, &user, &two_numbers[0], 4, &left[0], 4, &done[0]));
    OK(COIPipelineRunFunction(pipeline[1], echo, 0, NULL, NULL, 1, &done[0], &two_numbers[1], 4, &left[1], 4, &done[1]));
    OK(COIPipelineRunFunction(pipeline[0], function(process, "await_byte"), 1, &buffer, &reads, 0, NULL, NULL, 0, NULL, 0,
                              &done[2]));
    OK(COIEventRegisterCallback(done[0], callback, &one, 0));
    CHECK(left[0] == 0 && left[1] == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, signal_later, &user) == 0);
    uint32_t count = 0, indices[3] = {9, 9, 9};
    OK(COIEventWait(2, done, -1, 1, &count, indices));
    CHECK(count == 2 && indices[0] == 0 && indices[1] == 1 && left[0] == 21 && left[1] == 22);
    CHECK(called == 1 && order[0] == 100 + COI_SUCCESS);
    pthread_join(thread, NULL);
    OK(COIEventRegisterCallback(done[1], callback, &one, 0));
    CHECK(called == 2);
    // Of several, those that have come.
    OK(COIEventWait(3, done, 0, 0, &count, indices));
    CHECK(count == 2);
    EXPECT(COI_TIME_OUT_REACHED, COIEventWait(3, done, 0, 1, NULL, NULL));
    // The other pipeline runs beside the one that waits.
    OK(COIPipelineRunFunction(pipeline[1], function(process, "set_byte"), 1, &buffer, &reads, 0, NULL, NULL, 0, NULL, 0,
                              NULL));
    OK(COIEventWait(3, done, -1, 1, NULL, NULL));

    // An event that a function signals.
    OK(COIPipelineRunFunction(pipeline[0], function(process, "signal_event"), 0, NULL, NULL, 0, NULL, &other, sizeof other,
                              NULL, 0, NULL));
    OK(COIEventWait(1, &other, -1, 1, NULL, NULL));
    OK(COIEventUnregisterUserEvent(other));
    EXPECT(COI_INVALID_HANDLE, COIEventUnregisterUserEvent(other));
    EXPECT(COI_INVALID_HANDLE, COIEventSignalUserEvent(done[0]));

    // One that is given up takes what depends on it with it.
    OK(COIEventRegisterUserEvent(&other));
    OK(COIPipelineRunFunction(pipeline[0], echo, 0, NULL, NULL, 1, &other, &one, 4, &left[0], 4, &done[0]));
    OK(COIEventUnregisterUserEvent(other));
    EXPECT(COI_EVENT_CANCELED, COIEventWait(1, &done[0], -1, 1, NULL, NULL));
    CHECK(left[0] == 21);

    // Transfers that wait.
    static char bytes[4096], back[4096];
    memset(bytes, 4, sizeof bytes);
    COIBUFFER normal;
    OK(COIBufferCreate(4096, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &normal));
    OK(COIEventRegisterUserEvent(&other));
    OK(COIBufferWrite(normal, 0, bytes, 4096, COI_COPY_UNSPECIFIED, 1, &other, &done[0]));
    OK(COIBufferRead(normal, 0, back, 4096, COI_COPY_UNSPECIFIED, 0, NULL, &done[1]));
    EXPECT(COI_TIME_OUT_REACHED, COIEventWait(1, &done[1], 10, 1, NULL, NULL));
    OK(COIEventSignalUserEvent(other));
    OK(COIEventWait(2, done, -1, 1, NULL, NULL));
    CHECK(back[4095] == 4);
    OK(COIBufferWrite(normal, 0, bytes, 4096, COI_COPY_UNSPECIFIED, 0, NULL, COI_EVENT_ASYNC));
    OK(COIBufferDestroy(normal));
    OK(COIBufferDestroy(buffer));
    OK(COIPipelineDestroy(pipeline[0]));
    OK(COIPipelineDestroy(pipeline[1]));
}

static void libraries(COIPROCESS process, const char *file)
{
    COILIBRARY library, same;
    OK(COIProcessLoadLibraryFromFile(process, file, "tripling", NULL, COI_LOADLIBRARY_NOW, &library));
    EXPECT(COI_ALREADY_EXISTS, COIProcessLoadLibraryFromFile(process, file, "tripling", NULL, 0, &same));
    CHECK(same == library);
    EXPECT(COI_ARGUMENT_MISMATCH, COIProcessLoadLibraryFromFile(process, file, NULL, NULL, 0, &same));
    EXPECT(COI_DOES_NOT_EXIST, COIProcessLoadLibraryFromFile(process, "/no/such/file", NULL, NULL, 0, &same));
    EXPECT(COI_INVALID_FILE, COIProcessLoadLibraryFromMemory(process, "no ELF file", 11, "x", NULL, NULL, 0, 0, &same));
    COIPIPELINE pipeline;
    OK(COIPipelineCreate(process, NULL, 0, &pipeline));
    int given = 14, left = 0;
    OK(COIPipelineRunFunction(pipeline, function(process, "triple"), 0, NULL, NULL, 0, NULL, &given, 4, &left, 4, NULL));
    CHECK(left == 42);
    OK(COIPipelineDestroy(pipeline));
    OK(COIProcessUnloadLibrary(process, library));
    EXPECT(COI_INVALID_HANDLE, COIProcessUnloadLibrary(process, library));
    const char *name = "triple";
    COIFUNCTION gone;
    EXPECT(COI_DOES_NOT_EXIST, COIProcessGetFunctionHandles(process, 1, &name, &gone));
    OK(COIProcessSetCacheSize(process, 1 << 20, COI_CACHE_MODE_ONDEMAND_SYNC | COI_CACHE_ACTION_NONE, 0, 0, 0, NULL, NULL));
    OK(COIProcessConfigureDMA(4, COI_DMA_MODE_ROUND_ROBIN));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    sink = argv[1];
    engines();
    arguments_and_exit();
    COIPROCESS one = start(sink, 0), two = start(sink, 1);
    functions(one);
    buffers(one, two);
    events(one);
    libraries(two, argv[2]);
    OK(COIProcessDestroy(one, -1, 0, NULL, NULL));
    OK(COIProcessDestroy(two, 10000, 1, NULL, NULL));
    printf("digest done\n");
    return 0;
}
