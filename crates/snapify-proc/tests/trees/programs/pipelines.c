// A chain of processes that pass numbers on through pipes, full ones among them, at work all the time.
#include "../../kinds/programs/check.h"

enum { LINKS = 12, NUMBERS = 200000 };

int main(void) {
    int previous[2];
    EQUAL(pipe(previous), 0);
    int source = fork();
    if (source == 0) {
        close(previous[0]);
        FILE *out = fdopen(previous[1], "w");
        for (long n = 0; n < NUMBERS; n++) fwrite(&n, sizeof n, 1, out);
        fclose(out);
        _exit(0);
    }
    close(previous[1]);
    for (int link = 0; link < LINKS; link++) {
        int next[2];
        EQUAL(pipe(next), 0);
        if (fork() == 0) {
            close(next[0]);
            long n;
            FILE *in = fdopen(previous[0], "r"), *out = fdopen(next[1], "w");
            while (fread(&n, sizeof n, 1, in) == 1) {
                n += 1;
                fwrite(&n, sizeof n, 1, out);
            }
            fclose(out);
            _exit(0);
        }
        close(previous[0]);
        close(next[1]);
        previous[0] = next[0];
    }
    FILE *in = fdopen(previous[0], "r");
    long n, sum = 0, count = 0;
    for (; count < NUMBERS / 10 && fread(&n, sizeof n, 1, in) == 1; count++) sum += n;
    pause_here();
    for (; fread(&n, sizeof n, 1, in) == 1; count++) sum += n;
    EQUAL(count, NUMBERS);
    EQUAL(sum, (long)NUMBERS * (NUMBERS - 1) / 2 + (long)NUMBERS * LINKS);
    int status, children = 0;
    while (wait(&status) > 0) {
        EQUAL(status, 0);
        children++;
    }
    EQUAL(children, LINKS + 1);
    return finish();
}
