// A process and its child write all their memory over and over, a page after the other, and look at each page before: it must
// have what the round before wrote there. Memory of one moment always looks so, whatever the moment; memory of several does not.
#include "../../kinds/programs/check.h"

#define PAGES 2000
#define AREAS 7

static char *areas[AREAS];
static volatile int stop;
static pthread_t writer;

static char *map(int flags, int file) {
    char *area = mmap(0, PAGES * 4096, PROT_READ | PROT_WRITE, flags, file, 0);
    EXPECT(area != MAP_FAILED);
    return area;
}

static int removed_file(void) {
    char name[] = "./removed-XXXXXX";
    int file = mkstemp(name);
    EXPECT(file >= 0);
    EQUAL(unlink(name), 0);
    EQUAL(ftruncate(file, PAGES * 4096), 0);
    return file;
}

static void *write_all(void *unused) {
    for (long round = 1; !stop && !failures; round++)
        for (int area = 0; area < AREAS; area++)
            for (int page = 0; page < PAGES; page++) {
                volatile long *at = (long *)(areas[area] + page * 4096);
                if (*at != round - 1) {
                    printf("area %d, page %d has %ld in round %ld\n", area, page, *at, round);
                    failures++;
                    return unused;
                }
                *at = round;
            }
    return unused;
}

static void begin(void) {
    const int private = MAP_PRIVATE | MAP_ANONYMOUS;
    areas[0] = map(private, -1);
    areas[1] = map(MAP_SHARED | MAP_ANONYMOUS, -1);
    areas[2] = map(private, -1);
    EQUAL(madvise(areas[2], PAGES * 4096, MADV_DONTFORK), 0);
    areas[3] = map(private, -1);
    EQUAL(madvise(areas[3], PAGES * 4096, MADV_WIPEONFORK), 0);
    int memory = memfd_create("memory", 0);
    EQUAL(ftruncate(memory, PAGES * 4096), 0);
    areas[4] = map(MAP_SHARED, memory);
    areas[5] = map(MAP_SHARED, removed_file());
    areas[6] = map(MAP_PRIVATE, removed_file());
    EQUAL(pthread_create(&writer, 0, write_all, 0), 0);
}

static void end(void) {
    stop = 1;
    EQUAL(pthread_join(writer, 0), 0);
}

// With any argument, there cannot be another process.
int main(int argc, char **argv) {
    (void)argv;
    int over[2], status = 0;
    char byte;
    EQUAL(pipe(over), 0);
    pid_t child = fork();
    if (child == 0) {
        close(over[1]);
        begin();
        while (read(over[0], &byte, 1) < 0 && errno == EINTR) {
        }
        end();
        fflush(stdout);
        _exit(failures);
    }
    close(over[0]);
    begin();
    const struct rlimit none = {0, 0};
    if (argc > 1) EQUAL(setrlimit(RLIMIT_NPROC, &none), 0);
    pause_here();
    end();
    close(over[1]);
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    // Nor is there a child of any other kind.
    EXPECT(waitpid(-1, &status, __WALL | WNOHANG) == -1 && errno == ECHILD);
    return finish();
}
