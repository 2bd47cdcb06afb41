// A program that has used up the memory that its limits grant: not another page can be mapped.
#include "check.h"

static void *map(size_t bytes) {
    return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Bytes that /proc/self/status shows.
static long shown(const char *name) {
    char line[256];
    long kibibytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) kibibytes = atol(line + strlen(name) + 1);
    fclose(file);
    return kibibytes * 1024;
}

int main(void) {
    struct rlimit addresses, data;
    static char buffer[BUFSIZ];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    // What the C library takes to read a file is taken before.
    shown("VmSize");
    EQUAL(getrlimit(RLIMIT_AS, &addresses), 0);
    EQUAL(getrlimit(RLIMIT_DATA, &data), 0);
    addresses.rlim_cur = shown("VmSize") + (1 << 20);
    data.rlim_cur = shown("VmData") + (1 << 20);
    EQUAL(setrlimit(RLIMIT_AS, &addresses), 0);
    EQUAL(setrlimit(RLIMIT_DATA, &data), 0);
    while (map(4096) != MAP_FAILED) continue;
    EQUAL(errno, ENOMEM);
    pause_here();

    struct rlimit now;
    EQUAL(getrlimit(RLIMIT_AS, &now), 0);
    EQUAL(now.rlim_cur, addresses.rlim_cur);
    EQUAL(now.rlim_max, addresses.rlim_max);
    EQUAL(getrlimit(RLIMIT_DATA, &now), 0);
    EQUAL(now.rlim_cur, data.rlim_cur);
    EXPECT(map(4096) == MAP_FAILED);
    return finish();
}
