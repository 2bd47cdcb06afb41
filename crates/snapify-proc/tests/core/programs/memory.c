// Every kind of mapping, its contents and its flags.
#include "../../kinds/programs/check.h"

#define PAGE 4096UL
#define MADV_GUARD_INSTALL_ 102

static char before[1 << 20], after[1 << 20];

// The mappings with their flags; not what depends on the moment. Anonymous mappings that touch and are alike count as one:
// whether the kernel joins them depends on their history.
static void list_mappings(char *out, size_t size) {
    static char line[4096], what[9000], last[9000];
    unsigned long start = 0, end = 0, first = 0, last_end = 0;
    char perms[8];
    size_t used = 0;
    last[0] = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    for (;;) {
        int more = fgets(line, sizeof line, smaps) != 0;
        unsigned long from, to, offset;
        if (more && sscanf(line, "%lx-%lx %7s %lx", &from, &to, perms, &offset) == 4) {
            start = from;
            end = to;
            // Offset of anonymous memory means nothing; a file that was removed is another one afterwards.
            char *name = strchr(line, '/'), *bracket = strchr(line, '[');
            char *gone = name ? strstr(line, "(deleted)") : 0;
            const char *shown = gone ? (perms[3] == 'p' ? "" : "gone") : name ? name : bracket ? bracket : "";
            snprintf(what, sizeof what, "%s %.*s", perms, (int)strcspn(shown, "\n"), shown);
        } else if (!more || !strncmp(line, "VmFlags:", 8)) {
            // One flag tells what has happened, not what is: where guards have been.
            char *guards = strstr(line, " gu ");
            if (more && guards) memmove(guards + 1, guards + 4, strlen(guards + 4) + 1);
            size_t length = strlen(what);
            snprintf(what + length, sizeof what - length, " %s", line);
            if (more && last_end == start && !strcmp(what, last) && what[5] == ' ') {
                last_end = end;
                continue;
            }
            if (last[0]) used += snprintf(out + used, size - used, "\n%lx-%lx %s", first, last_end, last);
            strcpy(last, what);
            first = start;
            last_end = end;
            if (!more) break;
        }
    }
    fclose(smaps);
}

// Lines of `a` that `b` lacks.
static void compare(const char *a, const char *b, const char *what) {
    for (; *a; a += strcspn(a, "\n") + 1) {
        static char line[4096];
        snprintf(line, sizeof line, "\n%.*s\n", (int)strcspn(a, "\n"), a);
        if (!strstr(b, line)) {
            printf("%s: %s\n", what, line + 1);
            failures++;
        }
    }
}

static void fill(char *at, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i++) ((uint64_t *)at)[i] = (i + 1) * 0x9E3779B97F4A7C15ULL + seed;
}

static int filled(const char *at, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / 8; i++)
        if (((uint64_t *)at)[i] != (i + 1) * 0x9E3779B97F4A7C15ULL + seed) return 0;
    return 1;
}

static int zero(const char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i]) return 0;
    return 1;
}

static char *map(size_t bytes, int prot, int flags, int fd) {
    char *at = mmap(0, bytes, prot, flags, fd, 0);
    EXPECT(at != MAP_FAILED);
    return at;
}

static int recurse(int depth) {
    volatile char frame[4096];
    frame[0] = (char)depth;
    return depth ? recurse(depth - 1) + frame[0] * 0 : 0;
}

int main(void) {
    int anonymous = MAP_PRIVATE | MAP_ANONYMOUS, rw = PROT_READ | PROT_WRITE;
    char *plain = map(8 << 20, rw, anonymous, -1);
    fill(plain, 4 << 20, 1);
    madvise(plain + (1 << 20), 8192, MADV_DONTNEED);
    char *read_only = map(2 * PAGE, rw, anonymous, -1);
    fill(read_only, 2 * PAGE, 2);
    mprotect(read_only, 2 * PAGE, PROT_READ);
    char *none = map(600 * PAGE, rw, anonymous, -1);
    fill(none, 600 * PAGE, 3);
    mprotect(none, 600 * PAGE, PROT_NONE);
    char *code = map(PAGE, rw, anonymous, -1);
    memcpy(code, "\xb8\x2a\x00\x00\x00\xc3", 6);
    mprotect(code, PAGE, PROT_READ | PROT_EXEC);
    char *sparse = map(64UL << 30, rw, anonymous | MAP_NORESERVE, -1);
    fill(sparse + (17UL << 30), PAGE, 4);
    fill(sparse + (64UL << 30) - PAGE, PAGE, 5);
    char *reserved = map(1UL << 40, PROT_NONE, anonymous | MAP_NORESERVE, -1);
    char *grows = map(16 * PAGE, rw, anonymous | MAP_GROWSDOWN, -1);
    fill(grows, 16 * PAGE, 6);
    char *shared = map(1 << 20, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
    fill(shared, 64 * PAGE, 7);
    char *shared_sparse = map(4UL << 30, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
    fill(shared_sparse + (3UL << 30), PAGE, 8);

    // One object mapped twice, partly, and its descriptor closed.
    int memory = memfd_create("twice", MFD_CLOEXEC);
    EQUAL(ftruncate(memory, 32 * PAGE), 0);
    char *first = map(32 * PAGE, rw, MAP_SHARED, memory);
    char *second = mmap(0, 16 * PAGE, rw, MAP_SHARED, memory, 16 * PAGE);
    close(memory);
    fill(first, 32 * PAGE, 9);

    // Files: named and removed, private and shared.
    int file = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600);
    static char content[40 * PAGE];
    fill(content, sizeof content, 10);
    EQUAL(write(file, content, sizeof content - 100), sizeof content - 100);
    char *written = map(40 * PAGE, rw, MAP_PRIVATE, file);
    fill(written + 5 * PAGE, 3 * PAGE, 11);
    mprotect(written + 6 * PAGE, PAGE, PROT_READ);
    char *from_file = map(40 * PAGE, PROT_READ, MAP_SHARED, file);
    close(file);
    file = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(write(file, content, sizeof content - 100), sizeof content - 100);
    char *gone_private = map(48 * PAGE, rw, MAP_PRIVATE, file);
    fill(gone_private + 3 * PAGE, PAGE, 12);
    char *gone_shared = map(40 * PAGE, rw, MAP_SHARED, file);
    unlink("gone");
    close(file);

    char *advised = map(64 * PAGE, rw, anonymous, -1);
    fill(advised, 64 * PAGE, 14);
    madvise(advised, 8 * PAGE, MADV_DONTFORK);
    madvise(advised + 8 * PAGE, 8 * PAGE, MADV_WIPEONFORK);
    madvise(advised + 16 * PAGE, 8 * PAGE, MADV_DONTDUMP);
    madvise(advised + 24 * PAGE, 8 * PAGE, MADV_NOHUGEPAGE);
    madvise(advised + 32 * PAGE, 8 * PAGE, MADV_HUGEPAGE);
    madvise(advised + 40 * PAGE, 8 * PAGE, MADV_SEQUENTIAL);
    madvise(advised + 48 * PAGE, 8 * PAGE, MADV_RANDOM);
    EQUAL(mlock(advised + 56 * PAGE, 4 * PAGE), 0);
    char *guarded = map(8 * PAGE, rw, anonymous, -1);
    fill(guarded, 8 * PAGE, 15);
    int guards = madvise(guarded + 2 * PAGE, 2 * PAGE, MADV_GUARD_INSTALL_) == 0;

    char *heap = sbrk(0);
    EXPECT(sbrk(100000) == heap);
    fill((char *)(((uintptr_t)heap + 7) & ~7UL), 90000, 16);
    recurse(100);

    printf("%s", "");
    list_mappings(before, sizeof before);
    char *end = sbrk(0);
    // Comes back as the anonymous memory that it is, which joins what it touches.
    int zeros = open("/dev/zero", O_RDWR);
    char *from_zeros = map(4 * PAGE, rw, MAP_PRIVATE, zeros);
    close(zeros);
    fill(from_zeros, PAGE, 13);
    pause_here();
    static char zeros_now[4 * PAGE];
    memcpy(zeros_now, from_zeros, sizeof zeros_now);
    munmap(from_zeros, sizeof zeros_now);
    from_zeros = zeros_now;
    list_mappings(after, sizeof after);
    compare(before, after, "is gone");
    compare(after, before, "is new");

    EXPECT(filled(plain, 1 << 20, 1) && zero(plain + (1 << 20), 8192) && zero(plain + (4 << 20), 4 << 20));
    EXPECT(filled(read_only, 2 * PAGE, 2));
    mprotect(none, 600 * PAGE, PROT_READ);
    EXPECT(filled(none, 600 * PAGE, 3));
    EQUAL(((int (*)(void))code)(), 42);
    EXPECT(filled(sparse + (17UL << 30), PAGE, 4) && filled(sparse + (64UL << 30) - PAGE, PAGE, 5));
    EXPECT(zero(sparse, 16 * PAGE));
    EQUAL(mprotect(reserved + (1UL << 39), PAGE, rw), 0);
    EXPECT(zero(reserved + (1UL << 39), PAGE));
    EXPECT(filled(grows, 16 * PAGE, 6));
    EXPECT(filled(shared, 64 * PAGE, 7) && zero(shared + 64 * PAGE, (1 << 20) - 64 * PAGE));
    EXPECT(filled(shared_sparse + (3UL << 30), PAGE, 8));
    EXPECT(filled(first, 32 * PAGE, 9) && !memcmp(first + 16 * PAGE, second, 16 * PAGE));
    second[5] ^= 1;
    EQUAL(first[16 * PAGE + 5], second[5]);
    EXPECT(filled(written, 5 * PAGE, 10) && filled(written + 5 * PAGE, 3 * PAGE, 11));
    EXPECT(!memcmp(written + 8 * PAGE, content + 8 * PAGE, sizeof content - 100 - 8 * PAGE));
    EXPECT(!memcmp(from_file, content, sizeof content - 100));
    EXPECT(!memcmp(gone_private, content, 3 * PAGE) && filled(gone_private + 3 * PAGE, PAGE, 12));
    EXPECT(!memcmp(gone_shared, content, sizeof content - 100));
    EXPECT(filled(from_zeros, PAGE, 13) && zero(from_zeros + PAGE, 3 * PAGE));
    EXPECT(filled(advised, 64 * PAGE, 14));
    if (guards) {
        unsigned char resident;
        EXPECT(!memcmp(guarded, guarded, 2 * PAGE));
        // A guard page kills who touches it, and makes the kernel's copy fail.
        EXPECT(write(open("/dev/null", O_WRONLY), guarded + 2 * PAGE, 1) != 0);
        int ends[2];
        EQUAL(pipe(ends), 0);
        EQUAL(write(ends[1], guarded + 2 * PAGE, 1), -1);
        EQUAL(write(ends[1], guarded + 4 * PAGE, 1), 1);
        (void)resident;
    }
    EXPECT(filled((char *)(((uintptr_t)heap + 7) & ~7UL), 90000, 16));
    EXPECT(sbrk(0) == end);
    EXPECT(sbrk(1 << 20) == end);
    memset(end, 1, 1 << 20);
    recurse(1500);
    char *moved = mremap(plain, 8 << 20, 16 << 20, MREMAP_MAYMOVE);
    EXPECT(moved != MAP_FAILED && filled(moved, 1 << 20, 1));
    return finish();
}
