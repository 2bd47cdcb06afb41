// Watches of files and directories: their numbers, also after gaps, and what they tell.
#include "check.h"
#include <sys/inotify.h>

static char buffer[16384] __attribute__((aligned(8)));

// The next event is this one; name may be NULL.
static void expect_event(int fd, int wd, uint32_t mask, const char *name) {
    static char *at, *end;
    if (at == end) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        EXPECT(n > 0);
        if (n <= 0) return;
        at = buffer;
        end = at + n;
    }
    struct inotify_event *event = (void *)at;
    at += sizeof *event + event->len;
    EQUAL(event->wd, wd);
    EQUAL(event->mask & ~IN_ISDIR, mask);
    EXPECT(name == NULL ? event->len == 0 : strcmp(event->name, name) == 0);
}

static int unread(int fd) {
    int n = -1;
    ioctl(fd, FIONREAD, &n);
    return n;
}

int main(void) {
    mkdir("watched", 0755), mkdir("watched/deep", 0755), mkdir("other", 0755), mkdir("quiet", 0755);
    close(open("watched/deep/file", O_RDWR | O_CREAT, 0644));
    symlink("nowhere", "link");
    unlink("watched/new");
    int first = inotify_init1(IN_NONBLOCK), second = inotify_init1(IN_CLOEXEC);
    EQUAL(inotify_add_watch(first, "watched", IN_CREATE | IN_DELETE), 1);
    for (int i = 2; i < 40; i++) {
        EQUAL(inotify_add_watch(first, "other", IN_ALL_EVENTS), i);
        inotify_rm_watch(first, i);
    }
    EQUAL(inotify_add_watch(first, "watched/deep/file", IN_MODIFY | IN_CLOSE_WRITE), 40);
    EQUAL(inotify_add_watch(first, "link", IN_ATTRIB | IN_DONT_FOLLOW), 41);
    EQUAL(inotify_add_watch(first, "other", IN_CREATE | IN_ONESHOT | IN_ONLYDIR), 42);
    EQUAL(inotify_add_watch(second, "quiet", IN_OPEN | IN_EXCL_UNLINK), 1);
    EQUAL(inotify_add_watch(second, "/dev/full", IN_DELETE_SELF), 2);
    while (read(first, buffer, sizeof buffer) > 0) {}
    // This one has something to tell that is not read yet.
    int told = inotify_init1(IN_NONBLOCK);
    EQUAL(inotify_add_watch(told, "other", IN_CREATE), 1);
    unlink("other/early");
    close(open("other/early", O_RDWR | O_CREAT, 0644));
    EQUAL(unread(told), 32);
    while (read(first, buffer, sizeof buffer) > 0) {}
    inotify_rm_watch(first, 42);
    EQUAL(inotify_add_watch(first, "other", IN_CREATE | IN_ONESHOT), 43);
    while (read(first, buffer, sizeof buffer) > 0) {}
    pause_here();

    // The restart itself shows nowhere.
    EQUAL(unread(first), 0);
    EQUAL(unread(second), 0);
    EQUAL(fcntl(first, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    EQUAL(fcntl(second, F_GETFL) & O_NONBLOCK, 0);
    EQUAL(fcntl(second, F_GETFD), FD_CLOEXEC);
    close(open("watched/new", O_RDWR | O_CREAT, 0644));
    unlink("watched/new");
    expect_event(first, 1, IN_CREATE, "new");
    expect_event(first, 1, IN_DELETE, "new");
    int fd = open("watched/deep/file", O_WRONLY);
    EQUAL(write(fd, "x", 1), 1);
    close(fd);
    expect_event(first, 40, IN_MODIFY, NULL);
    expect_event(first, 40, IN_CLOSE_WRITE, NULL);
    struct timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    EQUAL(utimensat(AT_FDCWD, "link", times, AT_SYMLINK_NOFOLLOW), 0);
    expect_event(first, 41, IN_ATTRIB, NULL);
    // Tells once, and is gone.
    unlink("other/once"), mkdir("other/once", 0755);
    expect_event(first, 43, IN_CREATE, "once");
    expect_event(first, 43, IN_IGNORED, NULL);
    rmdir("other/once");
    EQUAL(inotify_rm_watch(first, 43), -1);
    EQUAL(inotify_rm_watch(first, 1), 0);
    expect_event(first, 1, IN_IGNORED, NULL);
    struct inotify_event *event = (void *)buffer;
    ssize_t n;
    // Numbers are not given twice.
    EXPECT(inotify_add_watch(first, "watched", IN_CREATE) > 43);

    close(open("quiet/new", O_RDWR | O_CREAT, 0644));
    n = read(second, buffer, sizeof buffer);
    EXPECT(n == 32 && event->wd == 1 && event->mask == IN_OPEN && strcmp(event->name, "new") == 0);
    // What was not read comes as it was, or as the message that something was lost.
    n = read(told, buffer, sizeof buffer);
    EXPECT(n >= 32 && (event->wd == -1 ? event->mask == IN_Q_OVERFLOW
                                       : event->wd == 1 && event->mask == IN_CREATE && strcmp(event->name, "early") == 0));
    return finish();
}
