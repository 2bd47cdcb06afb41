// Programs that live on faults, as virtual machines do: threads that read where nothing may be read, divide by zero, execute what is no
// instruction and meet breakpoints, all the time. Each fault is answered once, by a handler that sees where it was.
#include "check.h"
#include <ucontext.h>

enum { THREADS = 3 };
static char *forbidden;
static volatile int done;
static volatile sig_atomic_t wrong;
static _Thread_local volatile long seen[65];
static _Thread_local volatile uintptr_t expected;

static void handler(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    seen[signal]++;
    // A breakpoint has been executed when it is told; the others would be executed again. Each takes two bytes.
    if (signal != SIGTRAP) registers[REG_RIP] += 2;
    if (signal == SIGSEGV && (uintptr_t)info->si_addr != expected) wrong = 1;
    if (signal == SIGSEGV && (uintptr_t)registers[REG_CR2] != expected) wrong = 2;
}

static void *fault(void *arg) {
    long round = 0;
    for (; !done; round++) {
        expected = (uintptr_t)forbidden + (round * 64 + (long)arg) % 4096;
        long value = round;
        // mov (%rax), %ebx; div %cx: two bytes and, with the prefix, three.
        __asm__ volatile("mov (%1), %%ebx" : "+r"(value) : "a"(expected) : "rbx", "memory");
        __asm__ volatile("ud2" ::: "memory");
        __asm__ volatile("int3" ::: "memory");
        __asm__ volatile("xor %%ecx, %%ecx; xor %%edx, %%edx; mov $1, %%eax; div %%ecx" ::: "rax", "rcx", "rdx", "memory");
        if (value != round) wrong = 3;
    }
    for (int kind = 0; kind < 4; kind++) {
        int signal = (int[]){SIGSEGV, SIGILL, SIGTRAP, SIGFPE}[kind];
        if (seen[signal] != round) {
            printf("signal %d: %ld of %ld\n", signal, seen[signal], round);
            wrong = 4;
        }
    }
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    forbidden = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    for (int kind = 0; kind < 4; kind++) EQUAL(sigaction((int[]){SIGSEGV, SIGILL, SIGTRAP, SIGFPE}[kind], &action, 0), 0);
    for (long n = 0; n < THREADS; n++) EQUAL(pthread_create(&threads[n], 0, fault, (void *)n), 0);
    pause_here();
    done = 1;
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], 0);
    EQUAL(wrong, 0);
    return finish();
}
