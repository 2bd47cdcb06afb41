#include "check.h"

static long offset(int fd) { return lseek(fd, 0, SEEK_CUR); }
static int close_on_exec(int fd) { return fcntl(fd, F_GETFD) & FD_CLOEXEC; }

// Whether a child, which has none of our POSIX locks and opens the file anew, finds it locked.
static int is_locked(const char *path, int posix) {
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        if (!posix) _exit(flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 1};
        _exit(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

int main(void) {
    char buffer[8192] = "";
    struct stat stat;

    int plain = open("plain", O_RDWR | O_CREAT | O_TRUNC, 0640);
    EQUAL(write(plain, "0123456789", 10), 10);
    lseek(plain, 4, SEEK_SET);
    int same = dup(plain);
    int high = fcntl(plain, F_DUPFD_CLOEXEC, 900);
    int other = open("plain", O_RDONLY | O_CLOEXEC);
    lseek(other, 7, SEEK_SET);
    int append = open("plain", O_WRONLY | O_APPEND | O_NONBLOCK);

    int directory = open(".", O_RDONLY | O_DIRECTORY);
    int by_path = open("plain", O_PATH);

    // Removed: the same file through two descriptions, one of them for writing only.
    int removed = open("removed", O_RDWR | O_CREAT | O_TRUNC, 0600);
    int removed_too = open("removed", O_WRONLY);
    for (int i = 0; i < 3; i++) {
        memset(buffer, 'a' + i, sizeof buffer);
        EQUAL(pwrite(removed, buffer, sizeof buffer, i * 100000), sizeof buffer);
    }
    unlink("removed");
    lseek(removed, 100001, SEEK_SET);
    lseek(removed_too, 5, SEEK_SET);
    int nameless = open(".", O_TMPFILE | O_RDWR, 0600);
    EQUAL(write(nameless, "nameless", 8), 8);

    // Removed and mapped: one object.
    int mapped = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(ftruncate(mapped, 8192), 0);
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    unlink("mapped");
    strcpy(map + 4096, "through the map");

    int memory = memfd_create("memory", MFD_ALLOW_SEALING);
    EQUAL(write(memory, "memory", 6), 6);
    EQUAL(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);

    int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
    int full = open("/dev/full", O_WRONLY);

    int status = open("/proc/self/status", O_RDONLY);
    int meminfo = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

    int locked = open("locked", O_RDWR | O_CREAT, 0600);
    EQUAL(flock(locked, LOCK_EX), 0);
    int posix = open("posix", O_RDWR | O_CREAT, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 50, .l_len = 100};
    EQUAL(fcntl(posix, F_SETLK, &lock), 0);
    int ofd = open("ofd", O_RDWR | O_CREAT, 0600);
    EQUAL(fcntl(ofd, F_OFD_SETLK, &lock), 0);
    EXPECT(is_locked("locked", 0) && is_locked("posix", 1) && is_locked("ofd", 1));

    close(2);  // stays closed
    pause_here();

    EQUAL(offset(plain), 4);
    EQUAL(read(plain, buffer, 2), 2);
    EXPECT(memcmp(buffer, "45", 2) == 0);
    EQUAL(offset(same), 6);
    EQUAL(offset(high), 6);
    EQUAL(high, 900);
    EXPECT(close_on_exec(high) && !close_on_exec(plain) && !close_on_exec(same) && close_on_exec(other));
    EQUAL(offset(other), 7);
    EQUAL(fcntl(plain, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK), O_RDWR);
    EQUAL(fcntl(append, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK), O_WRONLY | O_APPEND | O_NONBLOCK);
    EQUAL(write(append, "x", 1), 1);
    EQUAL(fstat(directory, &stat), 0);
    EXPECT(S_ISDIR(stat.st_mode));
    EQUAL(fcntl(by_path, F_GETFL) & O_PATH, O_PATH);
    EQUAL(read(by_path, buffer, 1), -1);

    EQUAL(offset(removed), 100001);
    EQUAL(offset(removed_too), 5);
    EQUAL(fstat(removed, &stat), 0);
    EQUAL(stat.st_size, 208192);
    EQUAL(stat.st_nlink, 0);
    EQUAL(stat.st_mode & 0777, 0600);
    for (int i = 0; i < 3; i++) {
        EQUAL(pread(removed, buffer, sizeof buffer, i * 100000), sizeof buffer);
        EXPECT(buffer[0] == 'a' + i && buffer[sizeof buffer - 1] == 'a' + i);
    }
    EQUAL(pread(removed, buffer, 1, 50000), 1);
    EQUAL(buffer[0], 0);
    EQUAL(write(removed_too, "!", 1), 1);
    EQUAL(pread(removed, buffer, 7, 0), 7);
    EXPECT(memcmp(buffer, "aaaaa!a", 7) == 0);
    EQUAL(pread(nameless, buffer, 9, 0), 8);
    EXPECT(memcmp(buffer, "nameless", 8) == 0);

    EXPECT(strcmp(map + 4096, "through the map") == 0);
    EQUAL(pwrite(mapped, "THROUGH", 7, 4096), 7);
    EXPECT(strcmp(map + 4096, "THROUGH the map") == 0);

    EQUAL(pread(memory, buffer, 7, 0), 6);
    EXPECT(memcmp(buffer, "memory", 6) == 0);
    EQUAL(fcntl(memory, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);

    EQUAL(read(null, buffer, 1), 0);
    EQUAL(read(zero, buffer, 1), 1);
    EQUAL(read(random, buffer, 1), 1);
    EQUAL(write(full, buffer, 1), -1);
    EQUAL(errno, ENOSPC);

    ssize_t n = pread(status, buffer, sizeof buffer - 1, 0);
    EXPECT(n > 0);
    buffer[n > 0 ? n : 0] = 0;
    char *tgid = strstr(buffer, "\nTgid:");
    EXPECT(tgid && atoi(tgid + 6) == getpid());
    EXPECT(pread(meminfo, buffer, 100, 0) == 100 && memcmp(buffer, "MemTotal", 8) == 0);
    EXPECT(close_on_exec(meminfo) && !close_on_exec(status));

    EXPECT(is_locked("locked", 0) && is_locked("posix", 1) && is_locked("ofd", 1));
    EQUAL(flock(locked, LOCK_UN), 0);
    EXPECT(!is_locked("locked", 0));

    EQUAL(fcntl(2, F_GETFD), -1);
    EQUAL(errno, EBADF);
    return finish();
}
