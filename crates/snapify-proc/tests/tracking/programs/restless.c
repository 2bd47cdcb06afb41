// Changes its memory in every way there is, at random: by itself and by the kernel, in place and by putting other memory there,
// in several threads and children.
#include "../../kinds/programs/check.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#define PAGE 4096UL
#define PAGES 512UL
#define HUGE (2UL << 20)

static volatile int stop;
// How often something is done before it ends by itself.
static unsigned long times = ~0UL;
static pthread_barrier_t prepared;
static pthread_mutex_t heap = PTHREAD_MUTEX_INITIALIZER;

static unsigned long next(unsigned long *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static char *map(char *at, unsigned long bytes, int flags, int file) {
    char *area = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | flags | (at ? MAP_FIXED : 0), file, 0);
    if (area == MAP_FAILED) {
        printf("mmap: %s\n", strerror(errno));
        abort();
    }
    return area;
}

// Whoever comes after an exec has the file of the one before.
static int file_of(unsigned long seed, unsigned long pages) {
    char name[32];
    snprintf(name, sizeof name, "./mapped-%lu", seed < 100 ? seed : 100);
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT(file >= 0);
    for (unsigned long page = 0; page < pages; page++) {
        char content[PAGE];
        memset(content, 'a' + page % 26, sizeof content);
        EQUAL(pwrite(file, content, PAGE, page * PAGE), PAGE);
    }
    return file;
}

struct work {
    unsigned long seed;
    char *anonymous, *of_file, *huge, *moving;
    char *places[2];
    unsigned long moving_bytes;
    int file, random;
};

static void touch(struct work *w, char *area, unsigned long pages, unsigned long times) {
    for (unsigned long i = 0; i < times; i++)
        *(volatile unsigned long *)(area + next(&w->seed) % pages * PAGE + next(&w->seed) % 500 * 8) = w->seed;
}

static void stack(unsigned long depth) {
    volatile char here[3000];
    here[depth % sizeof here] = depth;
    if (depth > 0) stack(depth - 1);
    here[0]++;
}

static void give_back(struct work *w, int advice) {
    unsigned long page = next(&w->seed) % (PAGES - 32), bytes = (1 + next(&w->seed) % 32) * PAGE;
    char *area = next(&w->seed) % 3 ? w->anonymous : w->of_file;
    // Refused for files, as it should be.
    madvise(area + page * PAGE, bytes, advice);
}

static void in_child(struct work *w) {
    pid_t child = next(&w->seed) % 4 ? fork() : vfork();
    if (child == 0) {
        *(volatile char *)(w->anonymous + 17 * PAGE) += 1;
        _exit(0);
    }
    if (child > 0) waitpid(child, 0, 0);
}

static void act(struct work *w) {
    unsigned long page = next(&w->seed) % (PAGES - 64), pages = 1 + next(&w->seed) % 16;
    char *at = w->anonymous + page * PAGE;
    switch (next(&w->seed) % 22) {
    case 0:
        // The kernel writes.
        EQUAL(read(w->random, at + 100, pages * 100), (long)(pages * 100));
        break;
    case 1:
        EQUAL(pread(w->file, at, pages * PAGE, 0), (long)(pages * PAGE));
        break;
    case 2: {
        int ends[2];
        EQUAL(pipe(ends), 0);
        EQUAL(write(ends[1], &w->seed, 8), 8);
        EQUAL(read(ends[0], at + 64, 8), 8);
        close(ends[0]);
        close(ends[1]);
        break;
    }
    case 3: {
        unsigned long word = w->seed;
        struct iovec from = {&word, 8}, to = {at + 8, 8};
        EQUAL(process_vm_writev(getpid(), &from, 1, &to, 1, 0), 8);
        break;
    }
    case 4:
        give_back(w, MADV_DONTNEED);
        break;
    case 5:
        give_back(w, MADV_FREE);
        break;
    case 6:
        // Other memory in the same place, with other content or none.
        map(at, pages * PAGE, MAP_ANONYMOUS, -1);
        if (next(&w->seed) % 2) memset(at, page, pages * PAGE);
        break;
    case 7:
        EQUAL(munmap(at, pages * PAGE), 0);
        map(at, pages * PAGE, MAP_ANONYMOUS, -1);
        break;
    case 8:
        map(w->of_file + page * PAGE, pages * PAGE, 0, w->file);
        break;
    case 9: {
        char *to = w->places[w->moving == w->places[0]];
        EXPECT(mremap(w->moving, w->moving_bytes, w->moving_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        // What was there before is reserved again.
        EXPECT(mmap(w->moving, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == w->moving);
        w->moving = to;
        break;
    }
    case 10: {
        unsigned long bytes = (16 + next(&w->seed) % (PAGES - 16)) * PAGE;
        if (bytes > w->moving_bytes) EQUAL(munmap(w->moving + w->moving_bytes, bytes - w->moving_bytes), 0);
        EXPECT(mremap(w->moving, w->moving_bytes, bytes, 0) == w->moving);
        if (bytes < w->moving_bytes)
            EXPECT(mmap(w->moving + bytes, w->moving_bytes - bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
        w->moving_bytes = bytes;
        break;
    }
    case 11:
        EQUAL(mprotect(at, pages * PAGE, PROT_READ), 0);
        EQUAL(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE), 0);
        break;
    case 12:
        in_child(w);
        break;
    case 13: {
        pthread_mutex_lock(&heap);
        char *end = sbrk(0);
        if (sbrk(pages * PAGE) == end) {
            memset(end, page, pages * PAGE);
            if (next(&w->seed) % 2) sbrk(-(long)(pages * PAGE));
        }
        pthread_mutex_unlock(&heap);
        break;
    }
    case 14:
        stack(next(&w->seed) % 100);
        break;
    case 15:
        touch(w, w->of_file, PAGES, 8);
        break;
    case 16:
        touch(w, w->huge, HUGE / PAGE, 8);
        break;
    case 17:
        // MADV_COLLAPSE; for EAGAIN and the like there may be reasons.
        madvise(w->huge, HUGE, 25);
        break;
    case 18:
        madvise(w->huge, HUGE, MADV_DONTNEED);
        memset(w->huge, page, HUGE / 2);
        break;
    case 19:
        // Merged pages are written anew, too.
        madvise(at, pages * PAGE, MADV_MERGEABLE);
        madvise(at, pages * PAGE, 21);
        break;
    case 20: {
        // Reading makes the page of zeros, or that of the file.
        volatile char sum = 0;
        for (unsigned long i = 0; i < PAGES; i++) sum += w->anonymous[i * PAGE] + w->of_file[i * PAGE];
        break;
    }
    default:
        touch(w, w->anonymous, PAGES, 20);
        touch(w, w->moving, w->moving_bytes / PAGE, 4);
    }
}

static void *be_restless(void *seed) {
    struct work w = {.seed = (unsigned long)seed * 7919 + 13};
    w.file = file_of((unsigned long)seed, PAGES);
    w.random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    EXPECT(w.random >= 0);
    w.anonymous = map(0, PAGES * PAGE, MAP_ANONYMOUS, -1);
    w.of_file = map(0, PAGES * PAGE, 0, w.file);
    char *huge = map(0, 2 * HUGE, MAP_ANONYMOUS, -1);
    w.huge = (char *)(((unsigned long)huge + HUGE - 1) & ~(HUGE - 1));
    madvise(w.huge, HUGE, MADV_HUGEPAGE);
    memset(w.huge, 1, HUGE);
    for (int i = 0; i < 2; i++) w.places[i] = map(0, PAGES * PAGE, MAP_ANONYMOUS, -1);
    w.moving = w.places[0];
    w.moving_bytes = PAGES * PAGE;
    EQUAL(mprotect(w.places[1], PAGES * PAGE, PROT_NONE), 0);
    memset(w.anonymous, 1, PAGES / 2 * PAGE);
    // From here on nobody maps anything where there is room: it is room that somebody has made for a moment.
    pthread_barrier_wait(&prepared);
    for (unsigned long n = 0; n < times && !stop && !failures; n++) {
        act(&w);
        if (next(&w.seed) % 16 == 0) usleep(200);
    }
    return 0;
}

// A child that becomes another program now and then, with its memory restless too.
static void become_another(char **argv, const char *seed) {
    unsigned long number = strtoul(seed, 0, 10);
    pthread_barrier_init(&prepared, 0, 1);
    times = 100;
    be_restless((void *)number);
    char next_seed[32];
    snprintf(next_seed, sizeof next_seed, "%lu", number + 1);
    execl("/proc/self/exe", argv[0], "another", next_seed, NULL);
    _exit(1);
}

int main(int argc, char **argv) {
    if (argc > 2) become_another(argv, argv[2]);
    // By one thread only, so that a fork finds no lock held.
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(0);
        close(1);
        become_another(argv, "100");
    }
    pid_t other = fork();
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(0);
        pthread_barrier_init(&prepared, 0, 1);
        be_restless((void *)50);
        _exit(0);
    }
    pthread_t threads[2];
    pthread_barrier_init(&prepared, 0, 3);
    for (long i = 0; i < 2; i++) EQUAL(pthread_create(&threads[i], 0, be_restless, (void *)(i + 1)), 0);
    pthread_barrier_wait(&prepared);
    pause_here();
    stop = 1;
    for (int i = 0; i < 2; i++) EQUAL(pthread_join(threads[i], 0), 0);
    kill(child, SIGKILL);
    kill(other, SIGKILL);
    waitpid(child, 0, 0);
    waitpid(other, 0, 0);
    return finish();
}
