// Memory and System V objects of several processes: shared before and after fork, mapped in different parts, and what one takes
// back from semaphores while another waits for them.
#include "../../kinds/programs/check.h"
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define PAGE 4096L
#define RW (PROT_READ | PROT_WRITE)

struct board {
    volatile int ready, go, done, failed;
};

static struct board *board;
static char *segment, *common, *object, *copied;

#define COPIED (16L << 20)
static int set, queue, id;

static char *map(size_t bytes, int prot, int flags, int fd) {
    char *address = mmap(0, bytes, prot, flags, fd, 0);
    EXPECT(address != MAP_FAILED);
    return address;
}

static int take(int number, int by, int flags) {
    struct sembuf operation = {.sem_num = number, .sem_op = by, .sem_flg = flags};
    return semop(set, &operation, 1);
}

// A child that gets ready, waits for the restart, and looks around.
static int child(void (*prepare)(void), void (*look)(void)) {
    int pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prepare();
    __sync_fetch_and_add(&board->ready, 1);
    while (!board->go) usleep(1000);
    look();
    __sync_fetch_and_add(&board->failed, failures);
    __sync_fetch_and_add(&board->done, 1);
    fflush(stdout);
    _exit(0);
}

static void first_prepares(void) {
    // Only a part of what the others have.
    munmap(common, 4 * PAGE);
    munmap(common + 8 * PAGE, 8 * PAGE);
    shmdt(segment);
    EQUAL(take(0, -2, SEM_UNDO), 0);
    object[0] = 'f';
    for (long i = 0; i < COPIED; i += 100 * PAGE) copied[i] = '1';
    // A process that has in common what its parent has in common with its own.
    int grandchild = fork();
    if (grandchild == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        copied[5 * PAGE] = '3';
        __sync_fetch_and_add(&board->ready, 1);
        while (!board->go) usleep(1000);
        for (long i = 0; i < COPIED; i += PAGE) EQUAL(copied[i], i == 5 * PAGE ? '3' : i % (100 * PAGE) ? 'c' : '1');
        __sync_fetch_and_add(&board->failed, failures);
        __sync_fetch_and_add(&board->done, 1);
        fflush(stdout);
        _exit(0);
    }
}

static void first_looks(void) {
    EQUAL(common[5 * PAGE], 'f');
    for (long i = 0; i < COPIED; i += PAGE) EQUAL(copied[i], i % (100 * PAGE) ? 'c' : '1');
    EQUAL(waitpid(-1, 0, 0) > 0, 1);
    common[6 * PAGE] = 'F';
    EQUAL(object[0], 'f');
    EQUAL(object[PAGE], 's');
    segment = shmat(id, 0, 0);
    EXPECT(segment != (char *)-1 && segment[PAGE] == 'p');
    EQUAL(semctl(set, 0, GETVAL), 1);
}

static void second_prepares(void) {
    segment[2 * PAGE] = 's';
    object[PAGE] = 's';
    EQUAL(take(1, 7, SEM_UNDO), 0);
    struct { long type; char text[8]; } message = {.type = 4, .text = "hello"};
    EQUAL(msgsnd(queue, &message, sizeof message.text, 0), 0);
}

static void second_looks(void) {
    for (long i = 0; i < COPIED; i += PAGE) EQUAL(copied[i], 'c');
    EXPECT(segment[PAGE] == 'p' && segment[2 * PAGE] == 's');
    segment[3 * PAGE] = 'S';
    // Until the first has ended, whose end gives back what it took.
    EQUAL(take(0, -3, 0), 0);
}

static void wait_for(volatile int *value, int wanted) {
    while (*value != wanted) usleep(1000);
}

int main(void) {
    board = (struct board *)map(PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    common = map(16 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    for (int i = 0; i < 16; i++) common[i * PAGE] = 'a' + i;
    int memory = memfd_create("object", 0);
    EQUAL(ftruncate(memory, 2 * PAGE), 0);
    object = map(2 * PAGE, RW, MAP_SHARED, memory);
    close(memory);
    copied = map(COPIED, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    memset(copied, 'c', COPIED);
    id = shmget(IPC_PRIVATE, 4 * PAGE, 0600);
    segment = shmat(id, 0, 0);
    EXPECT(segment != (char *)-1);
    EQUAL(shmctl(id, IPC_RMID, 0), 0);
    segment[PAGE] = 'p';
    set = semget(IPC_PRIVATE, 2, 0600);
    queue = msgget(IPC_PRIVATE, 0600);
    EQUAL(take(0, 3, 0), 0);
    // For whoever clears up after a program that was killed.
    FILE *ids = fopen("ids", "w");
    fprintf(ids, "%d %d\n", set, queue);
    fclose(ids);

    int first = child(first_prepares, first_looks), second = child(second_prepares, second_looks);
    wait_for(&board->ready, 3);
    for (long i = 0; i < COPIED; i += 70 * PAGE) copied[i] = 'p';
    memset(copied + 8 * PAGE, 0, 8 * PAGE);
    if (failures) return 1;
    pause_here();

    board->go = 1;
    int status;
    EQUAL(waitpid(first, &status, 0), first);
    EQUAL(status, 0);
    EQUAL(waitpid(second, &status, 0), second);
    EQUAL(status, 0);
    EQUAL(board->done, 3);
    EQUAL(board->failed, 0);
    for (int i = 0; i < 16; i++) EQUAL(common[i * PAGE], i == 6 ? 'F' : 'a' + i);
    EXPECT(segment[2 * PAGE] == 's' && segment[3 * PAGE] == 'S');
    EXPECT(object[0] == 'f' && object[PAGE] == 's');
    for (long i = 0; i < COPIED; i += PAGE) EQUAL(copied[i], i >= 8 * PAGE && i < 16 * PAGE ? 0 : i % (70 * PAGE) ? 'c' : 'p');
    struct shmid_ds about;
    EQUAL(shmctl(id, IPC_STAT, &about), 0);
    EXPECT(about.shm_nattch == 1 && (about.shm_perm.mode & SHM_DEST));
    // The first gave back 2, the second took 3, and gave up its 7.
    EQUAL(semctl(set, 0, GETVAL), 0);
    EQUAL(semctl(set, 1, GETVAL), 0);
    struct { long type; char text[8]; } message;
    EQUAL(msgrcv(queue, &message, sizeof message.text, 4, IPC_NOWAIT), sizeof message.text);
    EXPECT(!strcmp(message.text, "hello"));
    semctl(set, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, 0);
    return finish();
}
