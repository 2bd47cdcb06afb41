#include "check.h"

int main(void) {
    static char out[100000], in[200000];
    for (size_t i = 0; i < sizeof out; i++) out[i] = i * 7 % 251;
    signal(SIGPIPE, SIG_IGN);

    // Half full, larger than usual, with its own flags at each end, and one end twice.
    int large[2], small[2], drained[2], deaf[2], empty[2];
    EQUAL(pipe(large), 0);
    EXPECT(fcntl(large[1], F_SETPIPE_SZ, 1 << 18) == 1 << 18);
    EQUAL(write(large[1], out, sizeof out), sizeof out);
    fcntl(large[0], F_SETFL, O_NONBLOCK);
    int large_again = fcntl(large[0], F_DUPFD_CLOEXEC, 50);

    EQUAL(pipe2(small, O_CLOEXEC), 0);
    for (int i = 0; i < 16; i++) EQUAL(write(small[1], out + i, 1), 1);

    // What is left in it is read before the end is seen.
    EQUAL(pipe(drained), 0);
    EQUAL(write(drained[1], "last words", 10), 10);
    close(drained[1]);

    EQUAL(pipe(deaf), 0);
    close(deaf[0]);

    EQUAL(pipe2(empty, O_NONBLOCK), 0);

    pause_here();

    struct stat a, b;
    EQUAL(fstat(large[0], &a) | fstat(large[1], &b), 0);
    EQUAL(a.st_ino, b.st_ino);
    EQUAL(fcntl(large[1], F_GETPIPE_SZ), 1 << 18);
    EQUAL(fcntl(large[0], F_GETFL), O_RDONLY | O_NONBLOCK);
    EQUAL(fcntl(large[1], F_GETFL), O_WRONLY);
    EQUAL(fcntl(large_again, F_GETFD), FD_CLOEXEC);
    EQUAL(fcntl(large[1], F_GETFD), 0);
    EQUAL(write(large[1], "more", 4), 4);
    size_t have = 0;
    for (ssize_t n; (n = read(have % 2 ? large[0] : large_again, in + have, 7777)) > 0;) have += n;
    EQUAL(errno, EAGAIN);
    EQUAL(have, sizeof out + 4);
    EXPECT(memcmp(in, out, sizeof out) == 0 && memcmp(in + sizeof out, "more", 4) == 0);

    EQUAL(read(small[0], in, 100), 16);
    EXPECT(memcmp(in, out, 16) == 0);
    EQUAL(fcntl(small[0], F_GETFD), FD_CLOEXEC);

    EQUAL(read(drained[0], in, 100), 10);
    EXPECT(memcmp(in, "last words", 10) == 0);
    EQUAL(read(drained[0], in, 100), 0);

    EQUAL(write(deaf[1], "x", 1), -1);
    EQUAL(errno, EPIPE);

    EQUAL(read(empty[0], in, 1), -1);
    EQUAL(errno, EAGAIN);
    close(empty[1]);
    EQUAL(read(empty[0], in, 1), 0);
    return finish();
}
