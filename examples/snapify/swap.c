// Figure 6: an offload process leaves its card, and comes back on it or on another one, several times.
//
// usage: swap SINK DIRECTORY|- [STEPS]     (-: the same computation without swapping)
#include "application.h"

int main(int argc, char **argv)
{
    uint32_t cards;
    if (argc < 3) {
        fprintf(stderr, "usage: swap SINK DIRECTORY|- [STEPS]\n");
        return 2;
    }
    int steps = argc > 3 ? atoi(argv[3]) : 60;
    MUST(COIEngineGetCount(COI_DEVICE_MIC, &cards));
    application a = begin(argv[1], 0);
    uint64_t digest = 0;
    for (int i = 0; i < steps; i++) {
        digest = digest * 31 + step(&a, i);
        if (strcmp(argv[2], "-") != 0 && i % 10 == 5) {
            snapify_t *snapshot = snapify_swapout(argv[2], a.process);
            if (!snapshot)
                return 1;
            // The card is somebody else's meanwhile.
            application other = begin(argv[1], i / 10 % cards);
            step(&other, i);
            MUST(COIProcessDestroy(other.process, -1, 0, NULL, NULL));
            if (!snapify_swapin(snapshot, (i / 10 + 1) % cards))
                return 1;
            printf("swapped out and in: now on card %d\n", snapify_device(a.process));
        }
    }
    return finish(&a, digest);
}
