// Figure 5: an application that takes checkpoints of itself. `snapify restart DIRECTORY/application` starts it again.
//
// usage: checkpoint SINK DIRECTORY|- [STEPS]     (-: the same computation without checkpoints)
#include "application.h"

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: checkpoint SINK DIRECTORY|- [STEPS]\n");
        return 2;
    }
    int steps = argc > 3 ? atoi(argv[3]) : 30, stops = argc > 4;
    application a = begin(argv[1], 0);
    char offload[512], all[512];
    snprintf(offload, sizeof offload, "%s/offload", argv[2]);
    snprintf(all, sizeof all, "%s/application", argv[2]);
    uint64_t digest = 0;
    for (int i = 0; i < steps; i++) {
        digest = digest * 31 + step(&a, i);
        if (strcmp(argv[2], "-") != 0 && i == steps / 2) {
            snapify_t snapshot = {.m_snapshot_path = offload, .m_process = a.process};
            int ret = snapify_blcr_callback(&snapshot, all);
            if (ret < 0) {
                fprintf(stderr, "no checkpoint was taken: see %s.log\n", all);
                return 1;
            }
            printf("%s after step %d\n", ret > 0 ? "restarted" : "continued", i);
            fflush(stdout);
            // As if it had crashed.
            if (ret == 0 && stops)
                raise(SIGKILL);
        }
    }
    return finish(&a, digest);
}
