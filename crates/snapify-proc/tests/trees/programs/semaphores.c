// Named semaphores that one process made and others opened, before and after the pause.
#include "../../kinds/programs/check.h"
#include <semaphore.h>

static sem_t *map(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "/dev/shm/sem.%s", name + 1);
    int file = open(path, O_RDWR);
    sem_t *mapped = mmap(NULL, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped;
}

int main(void) {
    char ping[64], pong[64];
    snprintf(ping, sizeof ping, "/snapify-ping-%d", getpid());
    snprintf(pong, sizeof pong, "/snapify-pong-%d", getpid());
    sem_t *ours = sem_open(ping, O_CREAT | O_EXCL, 0600, 0);
    sem_t *theirs = sem_open(pong, O_CREAT | O_EXCL, 0600, 0);
    EXPECT(ours != SEM_FAILED && theirs != SEM_FAILED);
    int ready[2];
    EQUAL(pipe(ready), 0);
    int child = fork();
    if (child == 0) {
        // Not by sem_open, which would give what was inherited.
        sem_t *mine = map(ping), *other = map(pong);
        if (mine == MAP_FAILED || other == MAP_FAILED || write(ready[1], "x", 1) != 1) _exit(3);
        for (int n = 0; n < 3; n++) {
            while (sem_wait(mine) != 0) {}
            sem_post(other);
        }
        _exit(0);
    }
    char byte;
    EQUAL(read(ready[0], &byte, 1), 1);
    pause_here();
    sem_t *late = sem_open(ping, 0);
    EXPECT(late != SEM_FAILED);
    for (int n = 0; n < 3; n++) {
        sem_post(n == 1 ? late : ours);
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 10;
        EQUAL(sem_timedwait(theirs, &limit), 0);
    }
    sem_unlink(ping);
    sem_unlink(pong);
    if (failures) kill(child, SIGKILL);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    return finish();
}
