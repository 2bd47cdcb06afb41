// Named pipes: with both ends, one end, none left; removed; in packets.
#include "check.h"

static int waiting(int fd) {
    int n = -1;
    ioctl(fd, FIONREAD, &n);
    return n;
}

static int events(int fd) {
    struct pollfd poller = {.fd = fd, .events = POLLIN | POLLOUT};
    EXPECT(poll(&poller, 1, 0) >= 0);
    return poller.revents;
}

int main(void) {
    char buffer[70000];
    struct stat stat, before;

    // Both ends, with content and another size.
    unlink("both"), mkfifo("both", 0640);
    int both_reader = open("both", O_RDONLY | O_NONBLOCK), both_writer = open("both", O_WRONLY | O_CLOEXEC);
    EQUAL(fcntl(both_reader, F_SETFL, 0), 0);
    EQUAL(fcntl(both_reader, F_SETPIPE_SZ, 16384), 16384);
    EQUAL(write(both_writer, "through both", 12), 12);
    fstat(both_reader, &before);

    // One description for both ends.
    unlink("one"), mkfifo("one", 0600);
    int one = open("one", O_RDWR | O_NONBLOCK);
    EQUAL(write(one, "alone", 5), 5);

    // Readers: of whom nobody has written yet, and of whom somebody has and is gone.
    unlink("unwritten"), mkfifo("unwritten", 0600);
    int unwritten = open("unwritten", O_RDONLY | O_NONBLOCK);
    EQUAL(events(unwritten), 0);
    unlink("written"), mkfifo("written", 0600);
    int written = open("written", O_RDONLY | O_NONBLOCK), gone = open("written", O_WRONLY);
    EQUAL(write(gone, "left", 4), 4);
    close(gone);
    EQUAL(events(written), POLLIN | POLLHUP);

    // A writer whose readers are gone.
    unlink("unread"), mkfifo("unread", 0600);
    gone = open("unread", O_RDONLY | O_NONBLOCK);
    int unread = open("unread", O_WRONLY);
    close(gone);
    EQUAL(events(unread), POLLOUT | POLLERR);

    // Removed.
    unlink("removed"), mkfifo("removed", 0604);
    int removed = open("removed", O_RDONLY | O_NONBLOCK), removed_writer = open("removed", O_WRONLY);
    EQUAL(write(removed_writer, "nameless", 8), 8);
    unlink("removed");

    // Packets: in an unnamed pipe and in a named one.
    int packets[2];
    EQUAL(pipe2(packets, O_DIRECT), 0);
    memset(buffer, 'p', sizeof buffer);
    EQUAL(write(packets[1], buffer, 1), 1);
    EQUAL(write(packets[1], buffer, 4096), 4096);
    EQUAL(write(packets[1], buffer, 17), 17);
    int single[2];
    EQUAL(pipe2(single, O_DIRECT | O_NONBLOCK), 0);
    EQUAL(write(single[1], buffer, 100), 100);
    pause_here();

    EQUAL(fstat(both_reader, &stat), 0);
    EXPECT(stat.st_ino == before.st_ino && stat.st_dev == before.st_dev && (stat.st_mode & 07777) == 0640);
    EQUAL(fcntl(both_writer, F_GETPIPE_SZ), 16384);
    EQUAL(fcntl(both_writer, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(both_reader, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDONLY);
    EQUAL(read(both_reader, buffer, sizeof buffer), 12);
    EXPECT(memcmp(buffer, "through both", 12) == 0);
    EQUAL(write(both_writer, "more", 4), 4);
    EQUAL(read(both_reader, buffer, sizeof buffer), 4);
    EQUAL(events(both_reader), 0);
    close(both_writer);
    EQUAL(events(both_reader), POLLHUP);
    EQUAL(read(both_reader, buffer, 1), 0);
    // The name leads to it still.
    both_writer = open("both", O_WRONLY | O_NONBLOCK);
    EQUAL(write(both_writer, "x", 1), 1);
    EQUAL(read(both_reader, buffer, 9), 1);

    EQUAL(fcntl(one, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR | O_NONBLOCK);
    EQUAL(read(one, buffer, 9), 5);
    EXPECT(memcmp(buffer, "alone", 5) == 0);
    EQUAL(read(one, buffer, 9), -1);
    EQUAL(errno, EAGAIN);

    EQUAL(events(unwritten), 0);
    EQUAL(read(unwritten, buffer, 9), 0);
    EQUAL(events(written), POLLIN | POLLHUP);
    EQUAL(read(written, buffer, 9), 4);
    EQUAL(read(written, buffer, 9), 0);
    signal(SIGPIPE, SIG_IGN);
    EQUAL(events(unread), POLLOUT | POLLERR);
    EQUAL(write(unread, "x", 1), -1);
    EQUAL(errno, EPIPE);

    EQUAL(fstat(removed, &stat), 0);
    EXPECT(S_ISFIFO(stat.st_mode) && stat.st_nlink == 0 && (stat.st_mode & 07777) == 0604);
    EQUAL(access("removed", F_OK), -1);
    EQUAL(read(removed, buffer, 9), 8);
    EXPECT(memcmp(buffer, "nameless", 8) == 0);
    EQUAL(write(removed_writer, "y", 1), 1);
    EQUAL(read(removed, buffer, 9), 1);

    EQUAL(waiting(packets[0]), 1 + 4096 + 17);
    EQUAL(fcntl(packets[1], F_GETFL) & (O_DIRECT | O_ACCMODE), O_DIRECT | O_WRONLY);
    EQUAL(read(packets[0], buffer, sizeof buffer), 1);
    EQUAL(read(packets[0], buffer, sizeof buffer), 4096);
    EQUAL(read(packets[0], buffer, 10), 10);  // the rest of the packet is lost
    EQUAL(write(packets[1], buffer, 3), 3);
    EQUAL(write(packets[1], buffer, 4), 4);
    EQUAL(read(packets[0], buffer, sizeof buffer), 3);
    EQUAL(read(single[0], buffer, 10), 10);
    EQUAL(read(single[0], buffer, 10), -1);
    return finish();
}
