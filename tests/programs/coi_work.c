// A computation on the cards by COI: two pipelines in a process on each card, functions that run while the next ones are
// queued, buffers that go from one to the other, and events. Says the same at its end whatever happened meanwhile.
//
// usage: coi_work SINK [ROUNDS]
#include "coi.h"

enum { WORDS = 1 << 16, BYTES = WORDS * 8, LANES = 2 };

int main(int argc, char **argv)
{
    uint32_t cards;
    if (argc < 2)
        return 2;
    int rounds = argc > 2 ? atoi(argv[2]) : 120;
    OK(COIEngineGetCount(COI_DEVICE_MIC, &cards));
    if (cards == 0)
        return 4;
    COIPROCESS *process = calloc(cards, sizeof *process);
    COIPIPELINE(*pipeline)[LANES] = calloc(cards, sizeof *pipeline);
    COIFUNCTION *step = calloc(cards, sizeof *step);
    for (uint32_t c = 0; c < cards; c++) {
        process[c] = start(argv[1], c);
        step[c] = function(process[c], "step");
        for (int l = 0; l < LANES; l++)
            OK(COIPipelineCreate(process[c], NULL, 0, &pipeline[c][l]));
    }
    static uint64_t words[WORDS];
    for (int i = 0; i < WORDS; i++)
        words[i] = i;
    // Two buffers for each lane, which change their roles; all cards use them in turn.
    COIBUFFER buffer[LANES][2];
    for (int l = 0; l < LANES; l++)
        for (int k = 0; k < 2; k++)
            OK(COIBufferCreate(BYTES, COI_BUFFER_NORMAL, 0, words, cards, process, &buffer[l][k]));
    const COI_ACCESS_FLAGS access[] = {COI_SINK_READ, COI_SINK_WRITE_ENTIRE};
    uint64_t digest = 0;
    for (int round = 0; round < rounds; round++) {
        uint64_t left[LANES][2][2];
        COIEVENT done[LANES][2];
        for (int l = 0; l < LANES; l++)
            for (int k = 0; k < 2; k++) {
                uint32_t c = (round + k) % cards;
                uint64_t key = round * 4 + l * 2 + k;
                COIBUFFER two[] = {buffer[l][k], buffer[l][1 - k]};
                OK(COIPipelineRunFunction(pipeline[c][l], step[c], 2, two, access, k, k ? &done[l][0] : NULL, &key, 8,
                                          left[l][k], 16, &done[l][k]));
            }
        OK(COIEventWait(LANES * 2, &done[0][0], -1, 1, NULL, NULL));
        for (int l = 0; l < LANES; l++)
            for (int k = 0; k < 2; k++)
                digest = digest * 31 + left[l][k][0];
        // The host takes a hand, too.
        COIMAPINSTANCE map;
        uint64_t *seen;
        OK(COIBufferMap(buffer[0][0], 0, 4096, COI_MAP_READ_WRITE, 0, NULL, NULL, &map, (void **)&seen));
        seen[round % 512] ^= digest;
        OK(COIBufferUnmap(map, 0, NULL, NULL));
        if (round % 10 == 0) {
            printf("round %d\n", round);
            fflush(stdout);
        }
    }
    for (int l = 0; l < LANES; l++) {
        OK(COIBufferRead(buffer[l][0], 0, words, BYTES, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
        for (int i = 0; i < WORDS; i++)
            digest = digest * 31 + words[i];
    }
    for (uint32_t c = 0; c < cards; c++) {
        int8_t status;
        uint32_t termination;
        OK(COIProcessDestroy(process[c], -1, 0, &status, &termination));
        CHECK(status == 0 && termination == 0);
    }
    printf("digest %016lx\n", digest);
    return 0;
}
