// Files and directories that are open in unusual ways, or whose names are not what they were.
#include "check.h"
#include <dirent.h>

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EQUAL(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static int holds(int fd, const char *text) {
    char buffer[256];
    ssize_t n = pread(fd, buffer, sizeof buffer, 0);
    return n == (ssize_t)strlen(text) && memcmp(buffer, text, n) == 0;
}

// Names that are left to be read.
static int names(int fd, char seen[][32], int most) {
    char buffer[8192];
    int count = 0;
    for (ssize_t n; (n = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0;) {
        for (char *at = buffer; at < buffer + n; at += *(unsigned short *)(at + 16))
            if (count < most) strcpy(seen[count++], at + 19);
    }
    return count;
}

int main(void) {
    struct stat stat_now, before;
    char path[4096], seen[64][32], rest[64][32];

    // Only places in the file system.
    put("file", "file");
    unlink("link"), symlink("file", "link");
    unlink("pipe"), mkfifo("pipe", 0600);
    int place = open("file", O_PATH | O_CLOEXEC), link_itself = open("link", O_PATH | O_NOFOLLOW);
    int pipe_place = open("pipe", O_PATH), directory_place = open(".", O_PATH | O_DIRECTORY), device_place = open("/dev/null", O_PATH);
    put("gone", "gone");
    int gone_place = open("gone", O_PATH), gone_nofollow = open("gone", O_RDONLY | O_NOFOLLOW);
    unlink("gone");

    // Replaced under its name; removed, but with another name; with a name that looks like a removed one's.
    put("replaced", "old");
    int old = open("replaced", O_RDWR);
    put("replacement", "new");
    rename("replacement", "replaced");
    mkdir("aside", 0755);
    put("first-name", "two names");
    unlink("aside/second-name");
    EQUAL(link("first-name", "aside/second-name"), 0);
    int named_twice = open("first-name", O_RDWR);
    unlink("first-name");
    put("looks (deleted)", "here");
    int looks = open("looks (deleted)", O_RDONLY);
    put("was (deleted)", "not here");
    int was = open("was (deleted)", O_RDONLY);
    unlink("was (deleted)");
    put("moved-from", "moved");
    int moved = open("moved-from", O_RDONLY);
    rename("moved-from", "moved-to");

    // In a directory that is gone, and that directory itself.
    mkdir("lost", 0750);
    put("lost/file", "lost");
    int lost_file = open("lost/file", O_RDWR), lost = open("lost", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unlink("lost/file"), rmdir("lost");

    // Without a name from the start; one may get a name later, the other not.
    int nameless = open(".", O_TMPFILE | O_RDWR, 0640), for_ever = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
    EQUAL(write(nameless, "nameless", 8), 8);
    EQUAL(write(for_ever, "for ever", 8), 8);
    unlink("named-later");

    // A directory that is half read.
    mkdir("many", 0755);
    for (int i = 0; i < 30; i++) snprintf(path, sizeof path, "many/entry-%d", i), put(path, "");
    int many = open("many", O_RDONLY | O_DIRECTORY);
    char small[200];
    EXPECT(syscall(SYS_getdents64, many, small, sizeof small) > 0);
    int copy = open("many", O_RDONLY | O_DIRECTORY);
    EXPECT(lseek(copy, lseek(many, 0, SEEK_CUR), SEEK_SET) >= 0);
    int left = names(copy, rest, 64);

    // Files of the kernel.
    int maps = open("/proc/self/maps", O_RDONLY), of_thread = open("/proc/thread-self/comm", O_RDWR);
    int setting = open("/proc/sys/kernel/ostype", O_RDONLY), own = open("/proc/self", O_RDONLY | O_DIRECTORY);
    int system = open("/sys/kernel", O_RDONLY | O_DIRECTORY);
    int synced = open("file", O_RDWR | O_SYNC | O_NOATIME);

    // Which could not be opened so again as they are.
    unlink("for-reading"), unlink("for-nobody");
    int for_reading = open("for-reading", O_RDWR | O_CREAT, 0444), for_nobody = open("for-nobody", O_RDWR | O_CREAT, 0600);
    EQUAL(ftruncate(for_nobody, 4096), 0);
    char *mapped = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, for_nobody, 0);
    strcpy(mapped, "mapped");
    EQUAL(fchmod(for_nobody, 0), 0);
    int signals = open("file", O_RDWR | O_ASYNC);

    // The working directory is gone.
    mkdir("work", 0700);
    EQUAL(chdir("work"), 0);
    EQUAL(rmdir("../work"), 0);
    pause_here();

    EXPECT(fcntl(place, F_GETFL) & O_PATH && fcntl(place, F_GETFD) == FD_CLOEXEC);
    EXPECT(fstat(place, &stat_now) == 0 && S_ISREG(stat_now.st_mode));
    EXPECT(fstat(link_itself, &stat_now) == 0 && S_ISLNK(stat_now.st_mode));
    EQUAL(readlinkat(link_itself, "", path, sizeof path), 4);
    EXPECT(fstat(pipe_place, &stat_now) == 0 && S_ISFIFO(stat_now.st_mode));
    EXPECT(fstat(device_place, &stat_now) == 0 && S_ISCHR(stat_now.st_mode));
    EQUAL(faccessat(directory_place, "file", R_OK, 0), 0);
    EXPECT(fstat(gone_place, &stat_now) == 0 && stat_now.st_size == 4 && stat_now.st_nlink == 0);
    EQUAL(read(gone_place, path, 1), -1);
    EXPECT(holds(gone_nofollow, "gone"));

    EQUAL(pwrite(for_reading, "written", 7, 0), 7);
    EXPECT(fstat(for_reading, &stat_now) == 0 && (stat_now.st_mode & 07777) == 0444);
    EXPECT(fstat(for_nobody, &stat_now) == 0 && (stat_now.st_mode & 07777) == 0);
    strcpy(mapped, "through the mapping");
    EXPECT(pread(for_nobody, path, 20, 0) == 20 && strcmp(path, "through the mapping") == 0);
    EXPECT(fcntl(signals, F_GETFL) & O_ASYNC);

    EXPECT(holds(old, "old"));
    EQUAL(pwrite(old, "OLD", 3, 0), 3);
    int now = openat(directory_place, "replaced", O_RDONLY);
    EXPECT(holds(now, "new"));
    EXPECT(holds(named_twice, "two names"));
    fstat(named_twice, &before);
    EQUAL(fstatat(directory_place, "aside/second-name", &stat_now, 0), 0);
    EXPECT(before.st_ino == stat_now.st_ino && before.st_nlink == 1);
    EXPECT(holds(looks, "here") && holds(was, "not here") && holds(moved, "moved"));
    EXPECT(fstat(looks, &stat_now) == 0 && stat_now.st_nlink == 1);
    EXPECT(fstat(was, &stat_now) == 0 && stat_now.st_nlink == 0);

    EXPECT(holds(lost_file, "lost"));
    EXPECT(fstat(lost, &stat_now) == 0 && S_ISDIR(stat_now.st_mode) && stat_now.st_nlink == 0);
    EQUAL(stat_now.st_mode & 07777, 0750);
    EQUAL(openat(lost, "new", O_RDWR | O_CREAT, 0600), -1);
    EQUAL(errno, ENOENT);
    EQUAL(fcntl(lost, F_GETFD), FD_CLOEXEC);
    EXPECT(holds(nameless, "nameless") && holds(for_ever, "for ever"));
    snprintf(path, sizeof path, "/proc/self/fd/%d", nameless);
    EQUAL(linkat(AT_FDCWD, path, directory_place, "named-later", AT_SYMLINK_FOLLOW), 0);
    EXPECT(fstatat(directory_place, "named-later", &stat_now, 0) == 0 && stat_now.st_size == 8);
    EQUAL(stat_now.st_mode & 07777, 0640);

    EQUAL(names(many, seen, 64), left);
    for (int i = 0; i < left; i++) EXPECT(strcmp(seen[i], rest[i]) == 0);
    char name[32];
    EXPECT(pread(maps, path, 4096, 0) > 100);
    prctl(PR_SET_NAME, "odd");
    EXPECT(pread(of_thread, name, sizeof name, 0) == 4 && memcmp(name, "odd\n", 4) == 0);
    EQUAL(write(of_thread, "even", 4), 4);
    prctl(PR_GET_NAME, name);
    EXPECT(strcmp(name, "even") == 0);
    EXPECT(pread(setting, name, sizeof name, 0) == 6 && memcmp(name, "Linux", 5) == 0);
    EQUAL(faccessat(own, "status", R_OK, 0), 0);
    EQUAL(faccessat(system, "mm", F_OK, 0), 0);
    EQUAL(fcntl(synced, F_GETFL) & (O_SYNC | O_NOATIME | O_ACCMODE), O_SYNC | O_NOATIME | O_RDWR);

    EQUAL(stat(".", &stat_now), 0);
    EQUAL(stat_now.st_nlink, 0);
    EXPECT(getcwd(path, sizeof path) == NULL);
    EQUAL(errno, ENOENT);
    EQUAL(open("file", O_RDWR | O_CREAT, 0600), -1);
    return finish();
}
