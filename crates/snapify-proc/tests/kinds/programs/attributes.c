// What a process and its threads have set about themselves, different in each thread where threads can differ.
#include "check.h"
#include <linux/membarrier.h>

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#define PR_GET_IO_FLUSHER 58
#endif
#define THREADS 3

struct attributes {
    char name[17];
    int io, policy, nice, death, tsc, mce, flusher, cpuid, bypass, branch;
    unsigned long slack, cpus;
};

static void look(struct attributes *a) {
    memset(a, 0, sizeof *a);
    prctl(PR_GET_NAME, a->name);
    a->io = syscall(SYS_ioprio_get, 1, 0);
    a->policy = sched_getscheduler(0);
    a->nice = getpriority(PRIO_PROCESS, 0);
    prctl(PR_GET_PDEATHSIG, &a->death);
    prctl(PR_GET_TSC, &a->tsc);
    a->mce = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);
    a->flusher = prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0);
    a->cpuid = syscall(SYS_arch_prctl, 0x1011, 0);
    a->bypass = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
    a->branch = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, 0, 0, 0);
    a->slack = prctl(PR_GET_TIMERSLACK);
    sched_getaffinity(0, sizeof a->cpus, (cpu_set_t *)&a->cpus);
}

// Names are bytes: one that is no text, and one with line ends.
static const char *names[THREADS] = {"main \n) R 1", "\xff\xfe\x01", "0123456789abcde"};

static void choose(int n) {
    EQUAL(prctl(PR_SET_NAME, names[n]), 0);
    EQUAL(syscall(SYS_ioprio_set, 1, 0, n == 0 ? 3 << 13 : 2 << 13 | (n + 3)), 0);
    struct sched_param none = {0};
    EQUAL(sched_setscheduler(0, n == 1 ? SCHED_BATCH : n == 2 ? SCHED_IDLE : SCHED_OTHER, &none), 0);
    EQUAL(setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + n + 1), 0);
    EQUAL(prctl(PR_SET_TIMERSLACK, 70000 + n), 0);
    if (n == 1) {
        EQUAL(prctl(PR_SET_PDEATHSIG, SIGWINCH), 0);
        EQUAL(prctl(PR_SET_TSC, PR_TSC_SIGSEGV), 0);
        EQUAL(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0), 0);
        // Not on every processor, and not for everyone.
        syscall(SYS_arch_prctl, 0x1012, 0);
        prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
        prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
        unsigned long first = 1;
        EQUAL(sched_setaffinity(0, sizeof first, (cpu_set_t *)&first), 0);
    } else {
        prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_FORCE_DISABLE, 0, 0);
    }
}

static pthread_barrier_t barrier;

static void compare(int n, const struct attributes *before) {
    struct attributes now;
    look(&now);
    EXPECT(memcmp(now.name, before->name, 16) == 0 && memcmp(now.name, names[n], strlen(names[n])) == 0);
    EQUAL(now.io, before->io);
    EQUAL(now.policy, before->policy);
    EQUAL(now.nice, before->nice);
    EQUAL(now.death, before->death);
    EQUAL(now.tsc, before->tsc);
    EQUAL(now.mce, before->mce);
    EQUAL(now.flusher, before->flusher);
    EQUAL(now.cpuid, before->cpuid);
    EQUAL(now.bypass, before->bypass);
    EQUAL(now.branch, before->branch);
    EQUAL(now.slack, before->slack);
    EQUAL(now.cpus, before->cpus);
}

static void *thread(void *number) {
    int n = (int)(long)number;
    struct attributes before;
    choose(n);
    look(&before);
    pthread_barrier_wait(&barrier);  // set up
    pthread_barrier_wait(&barrier);  // restored
    compare(n, &before);
    return NULL;
}

static int barriers(int command) { return syscall(SYS_membarrier, command, 0, 0); }

static unsigned core_dump_filter(void) {
    unsigned filter = 0;
    FILE *file = fopen("/proc/self/coredump_filter", "r");
    EQUAL(fscanf(file, "%x", &filter), 1);
    fclose(file);
    return filter;
}

int main(void) {
    struct attributes before;
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    EQUAL(barriers(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED), 0);
    EQUAL(barriers(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), 0);
    EQUAL(barriers(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ), 0);
    FILE *file = fopen("/proc/self/coredump_filter", "w");
    EXPECT(fprintf(file, "0x71") > 0);
    fclose(file);
    for (long i = 1; i < THREADS; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    choose(0);
    look(&before);
    pthread_barrier_wait(&barrier);
    pause_here();

    compare(0, &before);
    pthread_barrier_wait(&barrier);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], NULL);
    EQUAL(barriers(MEMBARRIER_CMD_PRIVATE_EXPEDITED), 0);
    EQUAL(barriers(MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ), 0);
    EQUAL(barriers(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE), -1);
    EQUAL(errno, EPERM);
    EQUAL(core_dump_filter(), 0x71);
    return finish();
}
