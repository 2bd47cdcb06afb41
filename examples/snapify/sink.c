// The part of the applications that runs on a card.
#include <coi_sink.h>
#include <stdlib.h>

enum { HISTORY = 1 << 16 };

// The process's own: no buffer, and unknown to the host.
static uint64_t *history;
static uint64_t steps;

COINATIVEPROCESSEXPORT void advance(uint32_t buffers, void **buffer, uint64_t *length, void *misc, uint16_t misc_length,
                                    void *answer, uint16_t answer_length)
{
    (void)buffers, (void)misc_length, (void)answer_length;
    uint64_t *words = buffer[0], count = length[0] / 8, key = *(uint64_t *)misc, sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t x = words[i] + key + i + history[(i + steps) % HISTORY];
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        words[i] = x ^ (x >> 27);
        sum += words[i] * (i | 1);
    }
    history[steps++ % HISTORY] = sum;
    *(uint64_t *)answer = sum;
}

int main(void)
{
    history = calloc(HISTORY, sizeof *history);
    if (!history)
        return 1;
    COIPipelineStartExecutingRunFunctions();
    COIProcessWaitForShutdown();
    return 0;
}
