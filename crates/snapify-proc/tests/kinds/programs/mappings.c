// Unusual kinds of memory, one for each argument.
#include "check.h"
#include <dlfcn.h>
#include <linux/mman.h>
#include <sys/shm.h>

#define PAGE 4096L
#define RW (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif

static int is(const char *kind, const char *wanted) { return strcmp(kind, wanted) == 0; }

static int unavailable(void) {
    printf("not here (errno %d)\n", errno);
    exit(0);
}

static char *map_at(void *at, size_t bytes, int prot, int flags, int fd, off_t offset) {
    char *address = mmap(at, bytes, prot, flags, fd, offset);
    EXPECT(address != MAP_FAILED);
    return address;
}

static char *map(size_t bytes, int prot, int flags, int fd) { return map_at(0, bytes, prot, flags, fd, 0); }

// Whether the kernel can read there: nowhere behind the end of a file.
static int readable(const void *address) {
    int ends[2];
    EQUAL(pipe(ends), 0);
    int done = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return done;
}

// The value of a line of smaps for the mapping of an address: "VmFlags", "Locked", or the permissions for "".
static const char *smaps(const void *address, const char *name) {
    static char line[4096], value[4096];
    unsigned long start, end;
    int here = 0;
    char permissions[8];
    value[0] = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx %7s", &start, &end, permissions) == 3) {
            here = start <= (unsigned long)address && (unsigned long)address < end;
            if (here && !*name) strcpy(value, permissions);
        } else if (here && *name && !strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') {
            strcpy(value, line + strlen(name) + 1);
            value[strcspn(value, "\n")] = ' ';
        }
    }
    fclose(file);
    return value;
}

static int has_flag(const void *address, const char *flag) {
    char wanted[8];
    snprintf(wanted, sizeof wanted, " %s ", flag);
    return strstr(smaps(address, "VmFlags"), wanted) != 0;
}

static void write_at(int fd, const char *text, off_t offset) { EQUAL(pwrite(fd, text, strlen(text), offset), strlen(text)); }

// Shared memory of which only some pages are still mapped: the others are not gone.
static void pieces(void) {
    char *whole = map(16 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    for (int i = 0; i < 16; i++) whole[i * PAGE] = 'a' + i;
    munmap(whole, 2 * PAGE);
    munmap(whole + 5 * PAGE, PAGE);
    munmap(whole + 12 * PAGE, 4 * PAGE);
    mprotect(whole + 7 * PAGE, PAGE, PROT_NONE);
    pause_here();
    mprotect(whole + 7 * PAGE, PAGE, PROT_READ);
    for (int i = 2; i < 12; i++)
        if (i != 5) EQUAL(whole[i * PAGE], 'a' + i);
    char *more = mremap(whole + 8 * PAGE, 4 * PAGE, 9 * PAGE, MREMAP_MAYMOVE);
    EXPECT(more != MAP_FAILED);
    for (int i = 8; i < 16; i++) EQUAL(more[(i - 8) * PAGE], 'a' + i);
    EXPECT(!readable(more + 8 * PAGE));
    EQUAL(remap_file_pages(more, PAGE, 0, 1, 0), 0);
    EQUAL(more[0], 'b');
}

// A mapping that is longer than its object.
static void longer(void) {
    char *memory = map(4 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    memory[3 * PAGE] = 'x';
    memory = mremap(memory, 4 * PAGE, 32 * PAGE, MREMAP_MAYMOVE);
    EXPECT(memory != MAP_FAILED && !readable(memory + 4 * PAGE));
    char *untouched = map(64 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    pause_here();
    EQUAL(memory[3 * PAGE], 'x');
    EXPECT(readable(memory + 3 * PAGE + 4095) && !readable(memory + 4 * PAGE) && !readable(memory + 31 * PAGE));
    EXPECT(readable(untouched) && readable(untouched + 63 * PAGE));
}

// Private mappings of files without a name: pages that were not written show what is in the file.
static void private_files(void) {
    int open_one = memfd_create("open", 0), closed = memfd_create("closed", 0), twice = memfd_create("twice", 0);
    EQUAL(ftruncate(open_one, 3 * PAGE + 5), 0);
    EQUAL(ftruncate(closed, 2 * PAGE), 0);
    EQUAL(ftruncate(twice, 2 * PAGE), 0);
    char *a = map(6 * PAGE, RW, MAP_PRIVATE, open_one);
    char *b = map(2 * PAGE, RW, MAP_PRIVATE, closed);
    char *c = map(2 * PAGE, RW, MAP_PRIVATE, twice), *d = map(2 * PAGE, RW, MAP_SHARED, twice);
    write_at(open_one, "file", PAGE);
    write_at(closed, "kept", 0);
    strcpy(a, "mine");
    strcpy(b + PAGE, "mine");
    strcpy(c, "mine");
    strcpy(d, "ours");
    strcpy(d + PAGE, "ours");
    close(closed);
    close(twice);
    pause_here();
    EXPECT(!strcmp(a, "mine") && !strcmp(a + PAGE, "file") && !strcmp(b, "kept") && !strcmp(b + PAGE, "mine"));
    EXPECT(!strcmp(c, "mine") && !strcmp(c + PAGE, "ours") && !strcmp(d, "ours"));
    write_at(open_one, "else", PAGE);
    write_at(open_one, "else", 0);
    EXPECT(!strcmp(a, "mine") && !strcmp(a + PAGE, "else"));
    EXPECT(readable(a + 3 * PAGE) && !readable(a + 4 * PAGE));
}

static void seals(void) {
    int future = memfd_create("future", MFD_ALLOW_SEALING), full = memfd_create("full", MFD_ALLOW_SEALING);
    int none = memfd_create("none", 0), data = memfd_create("data", MFD_NOEXEC_SEAL);
    EQUAL(ftruncate(future, PAGE), 0);
    EQUAL(ftruncate(full, 2 * PAGE), 0);
    write_at(full, "sealed", PAGE);
    char *writable = map(PAGE, RW, MAP_SHARED, future);
    strcpy(writable, "before");
    EQUAL(fcntl(future, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK), 0);
    EQUAL(fcntl(full, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), 0);
    int reading = open("/proc/self/fd/4", O_RDONLY);
    char *read_only = map(2 * PAGE, PROT_READ, MAP_SHARED, reading);
    close(reading);
    struct stat before, after;
    EQUAL(fstat(data, &before), 0);
    int wanted[4] = {fcntl(future, F_GET_SEALS), fcntl(full, F_GET_SEALS), fcntl(none, F_GET_SEALS), fcntl(data, F_GET_SEALS)};
    pause_here();
    EQUAL(fcntl(future, F_GET_SEALS), wanted[0]);
    EQUAL(fcntl(full, F_GET_SEALS), wanted[1]);
    EQUAL(fcntl(none, F_GET_SEALS), wanted[2]);
    EQUAL(fcntl(data, F_GET_SEALS), wanted[3]);
    EQUAL(fstat(data, &after), 0);
    EQUAL(after.st_mode, before.st_mode);
    EXPECT(!strcmp(writable, "before"));
    writable[0] = 'B';
    EQUAL(pwrite(future, "x", 1, 0), -1);
    EXPECT(mmap(0, PAGE, RW, MAP_SHARED, future, 0) == MAP_FAILED);
    char *view = map(PAGE, PROT_READ, MAP_SHARED, future);
    EXPECT(!strcmp(view, "Before"));
    EXPECT(!strcmp(read_only + PAGE, "sealed"));
    EQUAL(mprotect(read_only, PAGE, RW), -1);
    EQUAL(pwrite(full, "x", 1, 0), -1);
    EQUAL(ftruncate(full, PAGE), -1);
}

static void zero_device(void) {
    int zero = open("/dev/zero", O_RDWR);
    char *shared = map(4 * PAGE, RW, MAP_SHARED, zero), *private = map(4 * PAGE, RW, MAP_PRIVATE, zero);
    int reading = open("/dev/zero", O_RDONLY);
    volatile char *read_only = map(PAGE, PROT_READ, MAP_SHARED, reading);
    EQUAL(read_only[7], 0);
    close(zero);
    close(reading);
    strcpy(shared + PAGE, "shared");
    strcpy(private + PAGE, "private");
    int child = fork();
    if (child == 0) {
        shared[0] = 'c';
        private[0] = 'c';
        _exit(0);
    }
    EQUAL(waitpid(child, 0, 0), child);
    pause_here();
    EXPECT(!strcmp(shared + PAGE, "shared") && !strcmp(private + PAGE, "private"));
    EXPECT(shared[0] == 'c' && private[0] == 0);
    EXPECT(read_only[7] == 0 && read_only[PAGE - 1] == 0);
}

static void files(void) {
    unlink("read-only");
    int file = open("read-only", O_RDWR | O_CREAT | O_TRUNC, 0400);
    EQUAL(ftruncate(file, PAGE + 1000), 0);
    write_at(file, "content", PAGE);
    int reading = open("read-only", O_RDONLY);
    char *shared = map(4 * PAGE, PROT_READ, MAP_SHARED, reading);
    char *private = map(4 * PAGE, RW, MAP_PRIVATE, reading);
    close(file);
    close(reading);
    strcpy(private, "written");
    // Written pages that hold only zeros hide what is in the file.
    int full = open("full", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 4; i++) write_at(full, "not zero", i * PAGE);
    char *blank = map(4 * PAGE, RW, MAP_PRIVATE, full);
    close(full);
    blank[0] = blank[2 * PAGE] = 'x';
    memset(blank, 0, PAGE);
    memset(blank + 2 * PAGE, 0, PAGE);
    static char data[3 * PAGE] = "initialized";
    memset(data, 0, sizeof data);
    // Nobody may write a file's memory whose descriptor is not for writing, whatever the file's permissions.
    file = open("plain", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(ftruncate(file, 2 * PAGE), 0);
    reading = open("plain", O_RDONLY);
    char *view = map(2 * PAGE, PROT_READ, MAP_SHARED, reading), *both = map(2 * PAGE, PROT_READ, MAP_SHARED, file);
    char *write_only = map(2 * PAGE, PROT_WRITE, MAP_SHARED, file);
    close(reading);
    close(file);
    write_only[5] = 'w';
    pause_here();
    EXPECT(!blank[0] && !strcmp(blank + PAGE, "not zero") && !blank[2 * PAGE] && !data[0]);
    EXPECT(!strcmp(shared + PAGE, "content") && !strcmp(private + PAGE, "content") && !strcmp(private, "written"));
    EXPECT(readable(shared + PAGE + 4095) && !readable(shared + 2 * PAGE) && !readable(private + 3 * PAGE));
    EQUAL(mprotect(shared, PAGE, RW), -1);
    EQUAL(mprotect(view, PAGE, RW), -1);
    EQUAL(mprotect(both, PAGE, RW), 0);
    memcpy(both, "fresh", 5);
    EXPECT(!strcmp(view, "freshw"));
    EXPECT(!strcmp(smaps(write_only, ""), "-w-s"));
}

static void flags(void) {
    char *droppable = mmap(0, 4 * PAGE, RW, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
    if (droppable == MAP_FAILED) unavailable();
    strcpy(droppable, "dropped at need");
    char *sealed = map(4 * PAGE, RW, ANONYMOUS, -1);
    strcpy(sealed, "sealed");
    char *sealed_none = map(4 * PAGE, PROT_NONE, ANONYMOUS, -1);
    int sealing = syscall(SYS_mseal, sealed, 4 * PAGE, 0) == 0 && syscall(SYS_mseal, sealed_none, 4 * PAGE, 0) == 0;
    char *mergeable = map(4 * PAGE, RW, ANONYMOUS, -1);
    int merging = madvise(mergeable, 4 * PAGE, MADV_MERGEABLE) == 0;
    char *on_fault = map(4 * PAGE, RW, ANONYMOUS, -1);
    EQUAL(mlock2(on_fault, 4 * PAGE, MLOCK_ONFAULT), 0);
    char *grows = map(4 * PAGE, RW, ANONYMOUS | MAP_GROWSDOWN, -1);
    grows[0] = 'g';
    pause_here();
    EXPECT(has_flag(droppable, "dp") && (!*droppable || !strcmp(droppable, "dropped at need")));
    if (sealing) {
        EXPECT(has_flag(sealed, "sl") && has_flag(sealed_none, "sl") && !strcmp(sealed, "sealed"));
        EQUAL(mprotect(sealed, PAGE, PROT_READ), -1);
        EQUAL(munmap(sealed_none, PAGE), -1);
    }
    EXPECT(!merging || has_flag(mergeable, "mg"));
    EXPECT(has_flag(on_fault, "lf") && has_flag(on_fault, "lo"));
    EQUAL(atol(smaps(on_fault, "Rss")), 0);
    EXPECT(has_flag(grows, "gd") && grows[0] == 'g');
    grows[-PAGE] = 'm';
    EXPECT(has_flag(grows - PAGE, "gd"));
}

// Guard regions, also in mappings of files.
static void guards(void) {
    int file = open("guarded", O_RDWR | O_CREAT | O_TRUNC, 0600), memory = memfd_create("guarded", 0);
    EQUAL(ftruncate(file, 8 * PAGE), 0);
    EQUAL(ftruncate(memory, 8 * PAGE), 0);
    write_at(file, "file", 2 * PAGE);
    char *kinds[5] = {map(8 * PAGE, RW, ANONYMOUS, -1), map(8 * PAGE, RW, MAP_PRIVATE, file), map(8 * PAGE, RW, MAP_SHARED, file),
                      map(8 * PAGE, RW, MAP_SHARED, memory), map(8 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1)};
    int fine[5];
    for (int i = 0; i < 5; i++) {
        for (int page = 0; page < 8; page++) kinds[i][page * PAGE + 100] = 'a' + page;
        fine[i] = madvise(kinds[i] + 3 * PAGE, 2 * PAGE, 102) == 0;
    }
    if (!fine[0]) unavailable();
    mprotect(kinds[0] + 6 * PAGE, PAGE, PROT_READ);
    pause_here();
    for (int i = 0; i < 5; i++) {
        for (int page = 0; page < 8; page++) {
            int guarded = fine[i] && (page == 3 || page == 4);
            EQUAL(readable(kinds[i] + page * PAGE), !guarded);
            if (!guarded) EQUAL(kinds[i][page * PAGE + 100], 'a' + page);
        }
        if (!fine[i]) continue;
        EQUAL(madvise(kinds[i] + 3 * PAGE, 2 * PAGE, 103), 0);
        // What was under them in memory that is only the program's is gone.
        EQUAL(kinds[i][3 * PAGE + 100], i ? 'd' : 0);
    }
}

// Address space that is reserved for later, and as many mappings as the system allows.
static void reservations(void) {
    enum { MANY = 60000 };
    char *reserved[4];
    for (int i = 0; i < 4; i++) {
        reserved[i] = map(512L << 30, i ? PROT_NONE : RW, ANONYMOUS | MAP_NORESERVE, -1);
        if (i < 2) continue;
        mprotect(reserved[i] + (300L << 30), PAGE, RW);
        strcpy(reserved[i] + (300L << 30), "used");
    }
    char *many = mmap(0, MANY * PAGE, PROT_NONE, ANONYMOUS, -1, 0);
    for (int i = 0; i < MANY; i += 2)
        if (mprotect(many + i * PAGE, PAGE, RW) != 0) unavailable();
    for (int i = 0; i < MANY; i += 200) many[i * PAGE] = 'm';
    pause_here();
    for (int i = 0; i < MANY; i += 2) EQUAL(many[i * PAGE], i % 200 ? 0 : 'm');
    for (int i = 2; i < 4; i++) EXPECT(!strcmp(reserved[i] + (300L << 30), "used") && !readable(reserved[i]));
    EXPECT(!readable(many + PAGE));
    reserved[0][400L << 30] = 1;
    EQUAL(mprotect(reserved[1] + (511L << 30), PAGE, RW), 0);
}

// As many mappings as the system allows.
static void most(int spare) {
    enum { MANY = 200000 };
    char *many = mmap(0, MANY * PAGE, PROT_NONE, ANONYMOUS | MAP_NORESERVE, -1, 0);
    int n = 0;
    while (n < MANY && mprotect(many + n * PAGE, PAGE, RW) == 0) n += 2;
    if (n >= MANY) unavailable();
    while (spare-- > 0) n -= 2, mprotect(many + n * PAGE, PAGE, PROT_NONE);
    for (int i = 0; i < n; i += 1000) many[i * PAGE] = 'm';
    pause_here();
    for (int i = 0; i < n; i += 1000) EQUAL(many[i * PAGE], 'm');
}

static void huge_segment(void) {
    int id = shmget(IPC_PRIVATE, 4L << 20, SHM_HUGETLB | 0600);
    if (id == -1) unavailable();
    char *memory = shmat(id, 0, 0);
    EXPECT(memory != (char *)-1);
    EQUAL(shmctl(id, IPC_RMID, 0), 0);
    memory[3 << 20] = 's';
    pause_here();
    EXPECT(memory[3 << 20] == 's' && !memory[0] && has_flag(memory, "ht"));
    char *again = shmat(id, 0, SHM_RDONLY);
    EXPECT(again != (char *)-1 && again[3 << 20] == 's');
}

static void lock_future(int on_fault) {
    char *early = map(8 * PAGE, RW, ANONYMOUS, -1);
    if (mlockall(MCL_FUTURE | (on_fault ? MCL_ONFAULT : 0)) != 0) unavailable();
    char *late = map(8 * PAGE, RW, ANONYMOUS, -1);
    EXPECT(!has_flag(early, "lo") && has_flag(late, "lo"));
    pause_here();
    EXPECT(!has_flag(early, "lo") && has_flag(late, "lo"));
    // Of its own protection, so that it is not joined with another.
    char *later = map(8 * PAGE, RW | PROT_EXEC, ANONYMOUS, -1);
    EXPECT(has_flag(later, "lo") && has_flag(later, "lf") == on_fault);
    EQUAL(atol(smaps(later, "Rss")), on_fault ? 0 : 32);
    EQUAL(munlockall(), 0);
    later = map(9 * PAGE, PROT_READ | PROT_EXEC, ANONYMOUS, -1);
    EXPECT(!has_flag(later, "lo"));
}

static void merge(void) {
    if (prctl(67, 1, 0, 0, 0) != 0) unavailable();
    char *early = map(8 * PAGE, RW, ANONYMOUS, -1);
    EXPECT(has_flag(early, "mg"));
    pause_here();
    EQUAL(prctl(68, 0, 0, 0, 0), 1);
    char *late = map(7 * PAGE, RW, ANONYMOUS, -1);
    EXPECT(has_flag(early, "mg") && has_flag(late, "mg"));
    EQUAL(prctl(67, 0, 0, 0, 0), 0);
    EXPECT(!has_flag(early, "mg"));
}

static void heap(long bytes) {
    // Nothing here may use the C library's own heap.
    static char buffer[BUFSIZ];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    char *begin = sbrk(0);
    if (bytes > 0) {
        EXPECT(sbrk(bytes) == begin);
        memset(begin, 'h', bytes);
    } else {
        // To nothing: there is no [heap] then.
        FILE *stat = fopen("/proc/self/stat", "r");
        unsigned long start = 0;
        EQUAL(fscanf(stat, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %*u %*u %*d %*u %*u %*u %*u "
                           "%*u %*u %*u %*u %*u %*u %*u %*u %*u %*d %*d %*u %*u %*u %*u %*u %*u %*u %lu", &start), 1);
        EQUAL(syscall(SYS_brk, start), start);
        begin = (char *)start;
    }
    char line[8];
    if (!failures && write(1, "ready\n", 6) != 6) _exit(1);
    if (read(0, line, sizeof line) < 1) _exit(2);
    if ((char *)syscall(SYS_brk, 0) != begin + bytes) _exit(3);
    for (long i = 0; i < bytes; i++)
        if (begin[i] != 'h') _exit(4);
    // What was beyond the end of the heap in its last page is zero.
    char *more = begin + bytes + 5 * PAGE;
    if ((char *)syscall(SYS_brk, more) != more) _exit(5);
    for (char *at = begin + bytes; at < more; at++)
        if (*at) _exit(6);
    if (write(1, "fine\n", 5) != 5) _exit(7);
    _exit(0);
}

static void huge(int kind) {
    long size = 2L << 20;
    char *memory;
    int fd = -1;
    if (kind < 2) memory = mmap(0, 2 * size, RW, MAP_ANONYMOUS | MAP_HUGETLB | (kind ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    else {
        fd = memfd_create("huge", MFD_HUGETLB);
        if (fd == -1 || ftruncate(fd, 2 * size) != 0) unavailable();
        memory = mmap(0, 2 * size, RW, MAP_SHARED, fd, 0);
    }
    if (memory == MAP_FAILED) unavailable();
    memset(memory + size + 12345, 'x', 100000);
    char *second = kind == 2 ? map(2 * size, RW, MAP_PRIVATE, fd) : 0;
    if (second) second[0] = 'p';
    mprotect(memory, size, PROT_READ);
    pause_here();
    EXPECT(has_flag(memory, "ht") && atol(smaps(memory, "KernelPageSize")) == 2048);
    EXPECT(memory[size + 12344] == 0 && memory[size + 12345] == 'x' && memory[size + 112344] == 'x' && memory[0] == 0);
    EXPECT(!strncmp(smaps(memory, ""), "r--", 3));
    EQUAL(mprotect(memory, size, RW), 0);
    memory[7] = 'y';
    if (second) {
        EXPECT(second[0] == 'p' && second[size + 12345] == 'x' && second[7] == 0 && memory[0] == 0);
        char seven;
        EQUAL(pread(fd, &seven, 1, 7), 1);
        EQUAL(seven, 'y');
    }
}

static void keys(void) {
    int first = pkey_alloc(0, 0), second = pkey_alloc(0, PKEY_DISABLE_WRITE), third = pkey_alloc(0, 0);
    if (third == -1) unavailable();
    char *memory = map(4 * PAGE, RW, ANONYMOUS, -1), *code = map(PAGE, PROT_EXEC, ANONYMOUS, -1);
    strcpy(memory, "guarded");
    EQUAL(pkey_mprotect(memory, 4 * PAGE, RW, second), 0);
    EQUAL(pkey_free(first), 0);
    pause_here();
    EXPECT(!strcmp(memory, "guarded"));
    EQUAL(atol(smaps(memory, "ProtectionKey")), second);
    EQUAL(pkey_get(second), PKEY_DISABLE_WRITE);
    EQUAL(pkey_alloc(0, 0), first);
    EQUAL(pkey_free(third), 0);
    EXPECT(!strcmp(smaps(code, ""), "--xp"));
}

// A library that is removed while its code runs.
static void library(void) {
    void *library = dlopen("./library.so", RTLD_NOW);
    if (!library) unavailable();
    int (*next)(void) = (int (*)(void))dlsym(library, "next");
    EQUAL(next(), 1);
    EQUAL(unlink("library.so"), 0);
    pause_here();
    EQUAL(next(), 2);
}

int main(int argc, char **argv) {
    const char *kind = argv[argc - 1];
    if (is(kind, "pieces")) pieces();
    else if (is(kind, "longer")) longer();
    else if (is(kind, "private-files")) private_files();
    else if (is(kind, "seals")) seals();
    else if (is(kind, "zero-device")) zero_device();
    else if (is(kind, "files")) files();
    else if (is(kind, "flags")) flags();
    else if (is(kind, "guards")) guards();
    else if (is(kind, "most")) most(0);
    else if (is(kind, "almost-most")) most(2);
    else if (is(kind, "huge-segment")) huge_segment();
    else if (is(kind, "reservations")) reservations();
    else if (is(kind, "lock-future")) lock_future(0);
    else if (is(kind, "lock-future-on-fault")) lock_future(1);
    else if (is(kind, "merge")) merge();
    else if (is(kind, "no-heap")) heap(0);
    else if (is(kind, "odd-heap")) heap(3 * PAGE + 777);
    else if (is(kind, "huge-private")) huge(0);
    else if (is(kind, "huge-shared")) huge(1);
    else if (is(kind, "huge-memfd")) huge(2);
    else if (is(kind, "keys")) keys();
    else if (is(kind, "library")) library();
    else pause_here();
    return finish();
}
