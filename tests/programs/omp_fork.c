/* A program that has used a card makes children: one that ends, one that executes another program. The card is the
 * parent's all the while. (The children call no exit handlers: those of libomp 16 fail in any child of fork.)
 * Exit status: 0 if all is well, 1 otherwise. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void report(const char *what, int ok) {
    printf("%-44s %s\n", what, ok ? "ok" : "FAILED");
    failures += !ok;
}

static int add_one(int x) {
    #pragma omp target map(tofrom : x)
    x++;
    return x;
}

static int status_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

int main(void) {
    if (omp_get_num_devices() == 0) {
        fprintf(stderr, "omp_fork: there is no device\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    report("a region before", add_one(1) == 2);

    pid_t child = fork();
    if (child == 0) _exit(7);
    report("a child that ends", WEXITSTATUS(status_of(child)) == 7);
    report("a region after it", add_one(2) == 3);

    child = fork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    report("a child that executes a program", status_of(child) == 0);
    report("a region after it", add_one(3) == 4);

    report("system()", system("exit 5") == 5 << 8);
    report("a region after it", add_one(4) == 5);
    return failures != 0;
}
