// Figure 7: an offload process moves from card to card while it works.
//
// usage: migrate SINK DIRECTORY|- [STEPS]     (-: the same computation without moving)
#include "application.h"

int main(int argc, char **argv)
{
    uint32_t cards;
    if (argc < 3) {
        fprintf(stderr, "usage: migrate SINK DIRECTORY|- [STEPS]\n");
        return 2;
    }
    int steps = argc > 3 ? atoi(argv[3]) : 60;
    MUST(COIEngineGetCount(COI_DEVICE_MIC, &cards));
    application a = begin(argv[1], 0);
    uint64_t digest = 0;
    for (int i = 0; i < steps; i++) {
        digest = digest * 31 + step(&a, i);
        if (strcmp(argv[2], "-") != 0 && i % 10 == 5) {
            int target = (snapify_device(a.process) + 1) % cards;
            if (snapify_migration(a.process, target, argv[2]) != a.process || snapify_device(a.process) != target)
                return 1;
            printf("moved to card %d\n", target);
        }
    }
    return finish(&a, digest);
}
