#include "check.h"
#include <sys/personality.h>

static struct rlimit limits[RLIMIT_NLIMITS];

static unsigned long long status_line(const char *name, int base) {
    char line[256], *end;
    unsigned long long value = ~0ull;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) value = strtoull(line + strlen(name) + 1, &end, base);
    fclose(file);
    return value;
}

static void *with_privileges(void *expected) {
    EQUAL(status_line("CapEff", 16), ((unsigned long long *)expected)[0]);
    EQUAL(status_line("CapPrm", 16), ((unsigned long long *)expected)[1]);
    EQUAL(status_line("NoNewPrivs", 10), 1);
    return NULL;
}

int main(void) {
    mkdir("inner", 0755);
    EQUAL(chdir("inner"), 0);
    char before[4096], now[4096];
    EXPECT(getcwd(before, sizeof before) != NULL);
    umask(0137);
    setsid();
    struct rlimit nofile = {200, 1000}, stack = {1 << 22, RLIM_INFINITY}, size = {1 << 30, 1ul << 40};
    EQUAL(setrlimit(RLIMIT_NOFILE, &nofile), 0);
    EQUAL(setrlimit(RLIMIT_STACK, &stack), 0);
    EQUAL(setrlimit(RLIMIT_FSIZE, &size), 0);
    for (int i = 0; i < RLIMIT_NLIMITS; i++) getrlimit(i, &limits[i]);
    EQUAL(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    EQUAL(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    EXPECT(personality(ADDR_NO_RANDOMIZE | SHORT_INODE) != -1);
    // A data segment and one of code, with others between them left out.
    struct { unsigned entry, base, limit, flags; } segment = {2, 0x20001000, 0xffff, 0x51}, code = {700, 0x10000000, 5, 0x45};
    static char segments[8192], segments_now[8192];
    EQUAL(syscall(SYS_modify_ldt, 0x11, &segment, sizeof segment), 0);
    EQUAL(syscall(SYS_modify_ldt, 0x11, &code, sizeof code), 0);
    EXPECT(syscall(SYS_modify_ldt, 0, segments, sizeof segments) > 0);
    EXPECT(segments[2 * 8] && segments[700 * 8]);
    unsigned long long caps[2] = {status_line("CapEff", 16), status_line("CapPrm", 16)};
    int score;
    FILE *file = fopen("/proc/self/oom_score_adj", "w");
    EXPECT(fprintf(file, "500") > 0);
    fclose(file);
    pid_t pid = getpid();
    uid_t uid = getuid();
    setenv("SET_LATER", "yes", 1);
    pause_here();

    EXPECT(getcwd(now, sizeof now) && strcmp(before, now) == 0);
    EQUAL(umask(0), 0137);
    EQUAL(getpid(), pid);
    EQUAL(getsid(0), pid);
    EQUAL(getpgrp(), pid);
    EQUAL(getuid(), uid);
    EQUAL(geteuid(), uid);
    for (int i = 0; i < RLIMIT_NLIMITS; i++) {
        struct rlimit limit;
        getrlimit(i, &limit);
        EQUAL(limit.rlim_cur, limits[i].rlim_cur);
        EQUAL(limit.rlim_max, limits[i].rlim_max);
    }
    int flag = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &flag);
    EQUAL(flag, 1);
    EQUAL(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 1);
    EQUAL(prctl(PR_GET_DUMPABLE), 1);
    EXPECT(syscall(SYS_modify_ldt, 0, segments_now, sizeof segments_now) > 0);
    EQUAL(memcmp(segments, segments_now, sizeof segments), 0);
    EQUAL(personality(0xffffffff), ADDR_NO_RANDOMIZE | SHORT_INODE);
    with_privileges(caps);
    pthread_t thread;
    pthread_create(&thread, NULL, with_privileges, caps);
    pthread_join(thread, NULL);
    file = fopen("/proc/self/oom_score_adj", "r");
    EQUAL(fscanf(file, "%d", &score), 1);
    EQUAL(score, 500);
    EXPECT(strcmp(getenv("SET_LATER"), "yes") == 0);
    // The kernel's own view of the arguments.
    FILE *arguments = fopen("/proc/self/cmdline", "r");
    size_t n = fread(now, 1, sizeof now, arguments);
    EXPECT(n > 8 && strcmp(now + n - 8, "context") == 0);
    return finish();
}
