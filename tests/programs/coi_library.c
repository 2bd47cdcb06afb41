// A library for a program on a card.
#include <sink/COIPipeline_sink.h>

COINATIVELIBEXPORT void triple(uint32_t buffers, void **buffer, uint64_t *length, void *misc, uint16_t misc_length,
                               void *answer, uint16_t answer_length)
{
    (void)buffers, (void)buffer, (void)length, (void)misc_length, (void)answer_length;
    *(int *)answer = 3 * *(int *)misc;
}
