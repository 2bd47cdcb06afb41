// A program on a card: functions that the host programs of these tests run.
#include <sink/COIBuffer_sink.h>
#include <sink/COIPipeline_sink.h>
#include <sink/COIProcess_sink.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS                                                                                                        \
    uint32_t buffers, void **buffer, uint64_t *length, void *misc, uint16_t misc_length, void *answer,                  \
        uint16_t answer_length
#define UNUSED                                                                                                           \
    (void)buffers, (void)buffer, (void)length, (void)misc, (void)misc_length, (void)answer, (void)answer_length

// State of the process that nothing but its memory holds.
static uint64_t calls;

// Leaves what it was given.
COINATIVEPROCESSEXPORT void echo(ARGUMENTS)
{
    UNUSED;
    memcpy(answer, misc, answer_length < misc_length ? answer_length : misc_length);
}

// The sum of all bytes of all buffers, and how many buffers and bytes there are.
COINATIVEPROCESSEXPORT void sum(ARGUMENTS)
{
    UNUSED;
    uint64_t *left = answer, sum = 0, total = 0;
    for (uint32_t i = 0; i < buffers; i++) {
        for (uint64_t j = 0; j < length[i]; j++)
            sum += ((unsigned char *)buffer[i])[j];
        total += length[i];
    }
    left[0] = sum;
    left[1] = buffers;
    left[2] = total;
}

// Adds a number to all bytes of the first buffer.
COINATIVEPROCESSEXPORT void add(ARGUMENTS)
{
    UNUSED;
    for (uint64_t j = 0; j < length[0]; j++)
        ((unsigned char *)buffer[0])[j] += *(unsigned char *)misc;
}

// One step of a computation on words: from buffer 0 into buffer 1, and the number of calls so far.
COINATIVEPROCESSEXPORT void step(ARGUMENTS)
{
    UNUSED;
    const uint64_t *from = buffer[0];
    uint64_t *to = buffer[1], key = *(uint64_t *)misc, count = length[0] / 8, digest = 0;
    for (int round = 0; round < 20; round++)
        for (uint64_t i = 0; i < count; i++) {
            uint64_t x = (round ? to[i] : from[i]) + key + i;
            x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
            x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
            to[i] = x ^ (x >> 31);
            digest += to[i] * (i + 1);
        }
    uint64_t *left = answer;
    left[0] = digest;
    left[1] = ++calls;
}

// Waits for a number of milliseconds.
COINATIVEPROCESSEXPORT void pause_ms(ARGUMENTS)
{
    UNUSED;
    usleep(1000 * *(uint32_t *)misc);
}

// Waits until a byte of the buffer is not 0: another function sets it.
COINATIVEPROCESSEXPORT void await_byte(ARGUMENTS)
{
    UNUSED;
    while (!*(volatile char *)buffer[0])
        usleep(100);
}

COINATIVEPROCESSEXPORT void set_byte(ARGUMENTS)
{
    UNUSED;
    *(volatile char *)buffer[0] = 1;
}

COINATIVEPROCESSEXPORT void signal_event(ARGUMENTS)
{
    UNUSED;
    COIEVENT event;
    memcpy(&event, misc, sizeof event);
    COIEventSignalUserEvent(event);
}

static char *kept;

// Keeps a buffer beyond its end on the host.
COINATIVEPROCESSEXPORT void keep(ARGUMENTS)
{
    UNUSED;
    kept = buffer[0];
    *(COIRESULT *)answer = COIBufferAddRef(kept);
}

COINATIVEPROCESSEXPORT void look_and_release(ARGUMENTS)
{
    UNUSED;
    int *left = answer;
    left[0] = kept[0];
    left[1] = COIBufferReleaseRef(kept);
    left[2] = COIBufferReleaseRef(kept);
}

COINATIVEPROCESSEXPORT void crash(ARGUMENTS)
{
    UNUSED;
    raise(SIGSEGV);
}

COINATIVEPROCESSEXPORT void leave(ARGUMENTS)
{
    UNUSED;
    _exit(5);
}

COINATIVEPROCESSEXPORT void say(ARGUMENTS)
{
    UNUSED;
    printf("%s\n", (char *)misc);
}

static char global[64] = "initial";

// Where memory of the program's own is.
COINATIVEPROCESSEXPORT void where(ARGUMENTS)
{
    UNUSED;
    *(void **)answer = global;
}

int main(int argc, char **argv)
{
    // Arguments and environment, as the host wants them.
    if (argc > 1 && strcmp(argv[1], "say") == 0) {
        printf("sink %s has %d arguments, GIVEN is %s, INHERITED is %s\n", argv[0], argc - 1,
               getenv("GIVEN") ? getenv("GIVEN") : "not set", getenv("INHERITED") ? getenv("INHERITED") : "not set");
        fflush(stdout);
    }
    if (argc > 1 && strcmp(argv[1], "fail") == 0)
        return 9;
    if (COIPipelineStartExecutingRunFunctions() != COI_SUCCESS) {
        printf("not on a card\n");
        return 3;
    }
    COIProcessWaitForShutdown();
    return argc > 2 ? atoi(argv[2]) : 0;
}
