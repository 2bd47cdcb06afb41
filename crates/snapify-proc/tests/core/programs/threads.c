// What the kernel keeps for each thread: ids, name, mask, alternate stack, pending signals, registers, rounding, TLS, robust mutexes,
// restartable sequences, scheduling.
#include "../../kinds/programs/check.h"
#include <fenv.h>
#include <immintrin.h>

#define THREADS 6
static pthread_barrier_t before, after;

static void *short_lived(void *x) {
    free(malloc(100));
    return x;
}

static pthread_mutex_t robust;
static __thread long local = 42;
static volatile int got_signal[THREADS];
static _Thread_local int my_index = -1;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    char here;
    stack_t stack;
    sigaltstack(0, &stack);
    EXPECT(stack.ss_flags & SS_ONSTACK);
    EXPECT(&here >= (char *)stack.ss_sp && &here < (char *)stack.ss_sp + stack.ss_size);
    if (info->si_code == SI_QUEUE) got_signal[my_index] = info->si_value.sival_int;
}

static int avx512(void) { return __builtin_cpu_supports("avx512f"); }

// Holds patterns in vector registers while another thread is waited for.
__attribute__((target("avx512f"))) static int vectors_512(volatile int *go) {
    static const uint64_t pattern[8] = {1, 22, 333, 4444, 55555, 666666, 7777777, 88888888};
    uint64_t out[8], second[8];
    uint32_t mask_out;
    __asm__ volatile("vmovdqu64 %[p], %%zmm31\n vmovdqu64 %[p], %%zmm2\n mov $0xa5a5, %%eax\n kmovw %%eax, %%k5\n"
                     "1: pause\n cmpl $0, (%[go])\n je 1b\n"
                     "vmovdqu64 %%zmm31, %[o]\n vmovdqu64 %%zmm2, %[s]\n kmovw %%k5, %[k]\n"
                     : [o] "=m"(out), [s] "=m"(second), [k] "=r"(mask_out)
                     : [p] "m"(pattern), [go] "r"(go)
                     : "eax", "memory", "xmm2", "cc");
    return !memcmp(out, pattern, 64) && !memcmp(second, pattern, 64) && (mask_out & 0xffff) == 0xa5a5;
}

static int vectors_128(volatile int *go) {
    static const uint64_t pattern[2] = {0x1122334455667788, 0x99aabbccddeeff00};
    uint64_t out[2];
    __asm__ volatile("movdqu %[p], %%xmm13\n1: pause\n cmpl $0, (%[go])\n je 1b\n movdqu %%xmm13, %[o]\n"
                     : [o] "=m"(out)
                     : [p] "m"(pattern), [go] "r"(go)
                     : "memory", "xmm13", "cc");
    return !memcmp(out, pattern, 16);
}

static volatile int released, trapped;

static void on_trap(int signal) { trapped = signal; }

static void *worker(void *argument) {
    int index = (int)(intptr_t)argument;
    char name[16], found[16];
    pid_t tid = gettid();
    my_index = index;
    local = 1000 + index;
    snprintf(name, sizeof name, "work)(er %d", index);
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_TIMERSLACK, 60000 + index, 0, 0, 0);
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536}, stack_found;
    sigaltstack(&stack, 0);
    sigset_t mask, mask_found;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigaddset(&mask, SIGRTMIN + index);
    pthread_sigmask(SIG_SETMASK, &mask, 0);
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};
    info.si_value.sival_int = 7000 + index;
    EQUAL(syscall(SYS_rt_tgsigqueueinfo, getpid(), tid, SIGUSR1, &info), 0);
    if (index == 1) fesetround(FE_UPWARD);
    if (index == 2) pthread_mutex_lock(&robust);
    int nice = getpriority(PRIO_PROCESS, tid) + 5;
    nice = nice < 19 ? nice : 19;
    if (index == 3) EQUAL(setpriority(PRIO_PROCESS, tid, nice), 0);
    cpu_set_t cpus, cpus_found;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    if (index == 4) sched_setaffinity(0, sizeof cpus, &cpus);

    pthread_barrier_wait(&before);
    if (index == 5) EXPECT(avx512() ? vectors_512(&released) : vectors_128(&released));
    if (index == 0) EXPECT(vectors_128(&released));
    pthread_barrier_wait(&after);

    EQUAL(gettid(), tid);
    EQUAL(local, 1000 + index);
    prctl(PR_GET_NAME, found);
    EXPECT(!strcmp(name, found));
    EQUAL(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), 60000 + index);
    sigaltstack(0, &stack_found);
    EXPECT(stack.ss_sp == stack_found.ss_sp && stack.ss_size == stack_found.ss_size);
    pthread_sigmask(SIG_SETMASK, 0, &mask_found);
    EXPECT(!memcmp(&mask, &mask_found, 8));
    EQUAL(got_signal[index], 0);
    sigemptyset(&mask);
    pthread_sigmask(SIG_SETMASK, &mask, 0);
    EQUAL(got_signal[index], 7000 + index);
    EQUAL(fegetround(), index == 1 ? FE_UPWARD : FE_TONEAREST);
    if (index == 3) EQUAL(getpriority(PRIO_PROCESS, tid), nice);
    sched_getaffinity(0, sizeof cpus_found, &cpus_found);
    EXPECT((CPU_COUNT(&cpus_found) == 1) == (index == 4 || sysconf(_SC_NPROCESSORS_ONLN) == 1));
    // Index 2 ends with the robust mutex locked: the kernel has to find it in the list.
    return 0;
}

int main(void) {
    pthread_t thread[THREADS];
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    struct sigaction trap = {.sa_handler = on_trap};
    sigaction(SIGTRAP, &trap, 0);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    pthread_barrier_init(&before, 0, THREADS + 1);
    pthread_barrier_init(&after, 0, THREADS + 1);
    pid_t pid = getpid();
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&thread[i], 0, worker, (void *)i);
    pthread_barrier_wait(&before);
    pause_here();
    released = 1;
    pthread_barrier_wait(&after);
    for (int i = 0; i < THREADS; i++) EQUAL(pthread_join(thread[i], 0), 0);
    EQUAL(pthread_mutex_lock(&robust), EOWNERDEAD);
    // Debuggers' own signal: what saves and restores by single steps must leave no trace of them.
    EQUAL(trapped, 0);
    __asm__ volatile("int3");
    EQUAL(trapped, SIGTRAP);
    EQUAL(getpid(), pid);
    EQUAL(gettid(), pid);
    // New threads get ids, stacks and restartable sequences as ever.
    for (int i = 0; i < 20; i++) {
        EQUAL(pthread_create(&thread[0], 0, short_lived, 0), 0);
        EQUAL(pthread_join(thread[0], 0), 0);
    }
    EXPECT(sched_getcpu() >= 0);
    return finish();
}
