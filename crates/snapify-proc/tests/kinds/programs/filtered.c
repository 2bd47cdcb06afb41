// Under a seccomp filter, as everything in a container is. With arguments it executes them, under such a filter as well.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

static void filter_calls(void) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog filter = {1, &allow};
    EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

int main(int argc, char **argv) {
    filter_calls();
    if (argc > 1) {
        execv(argv[1], argv + 1);
        return 127;
    }
    pause_here();
    EQUAL(prctl(PR_GET_SECCOMP), SECCOMP_MODE_FILTER);
    return finish();
}
