/* A tree of PROCESSES, each with THREADS in all and MAPPINGS of its own beside those of any program. Says "ready" when
 * all of it exists; goes on until standard input ends. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int born[2];

static void *idle(void *unused) {
    if (write(born[1], "t", 1) != 1) exit(__LINE__);
    for (;;) pause();
    return unused;
}

static void become_large(long threads, long mappings) {
    for (long i = 0; i < mappings; i++) {
        /* Neighbours differ in protection, so that the kernel cannot merge them. */
        char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) exit(__LINE__);
        *page = 1;
        if (mprotect(page, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE) != 0) exit(__LINE__);
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (long i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, idle, 0) != 0) exit(__LINE__);
    }
    if (write(born[1], "p", 1) != 1) exit(__LINE__);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const long processes = atol(argv[1]), threads = atol(argv[2]), mappings = atol(argv[3]);
    const pid_t root = getpid();
    if (pipe(born) != 0) return __LINE__;
    for (long i = 1; i < processes; i++) {
        const pid_t child = fork();
        if (child < 0) return __LINE__;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != root) return 1;
            become_large(threads, mappings);
            for (;;) pause();
        }
    }
    become_large(threads, mappings);
    char byte;
    for (long i = 0; i < processes * threads; i++)
        if (read(born[0], &byte, 1) != 1) return __LINE__;
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}
