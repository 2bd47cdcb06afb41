// System V objects: ids, keys, contents. The argument is a key of which this and the next ones are free.
#include "check.h"
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define PAGE 4096L

struct text { long type; char text[3000]; };
union semun { int value; struct semid_ds *status; unsigned short *values; };

static char *attach(int id, void *at, int flags) {
    char *address = shmat(id, at, flags);
    EXPECT(address != (char *)-1);
    return address;
}

// Whether `address` is mapped, with these permissions.
static int mapped(const void *address, const char *permissions) {
    char line[512], found[8];
    unsigned long start, end;
    int is = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, found) == 3 && start <= (unsigned long)address && (unsigned long)address < end)
            is = !strcmp(found, permissions);
    fclose(maps);
    return is;
}

int main(int argc, char **argv) {
    key_t key = strtol(argv[argc - 1], 0, 0);
    struct shmid_ds status;

    // Attached twice, once for reading, with a key and an odd size.
    int keyed = shmget(key, 3 * PAGE + 100, IPC_CREAT | IPC_EXCL | 0640);
    char *one = attach(keyed, 0, 0);
    char *two = attach(keyed, 0, SHM_RDONLY);
    strcpy(one, "first page");
    strcpy(one + 3 * PAGE, "last page");
    // Removed when it is no longer attached.
    int removed = shmget(IPC_PRIVATE, 5 * PAGE, 0600);
    char *held = attach(removed, 0, 0);
    EQUAL(shmctl(removed, IPC_RMID, 0), 0);
    for (int i = 0; i < 5; i++) held[i * PAGE] = 'a' + i;
    // In pieces: the second page is unmapped, the fourth is protected, the fifth has been moved.
    // (The place for that must not be the hole that is about to come to be.)
    char *place = mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(held + PAGE, PAGE);
    mprotect(held + 3 * PAGE, PAGE, PROT_NONE);
    EXPECT(mremap(held + 4 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    char *hole = mmap(held + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    strcpy(hole, "in the hole");
    // Attached by nobody.
    int loose = shmget(key + 1, 40 * PAGE, IPC_CREAT | IPC_EXCL | 0600);
    char *briefly = attach(loose, 0, 0);
    strcpy(briefly + 20 * PAGE, "nobody has it");
    shmdt(briefly);
    // One whose id is not the first with its index: the sequence number counts.
    int reused = shmget(IPC_PRIVATE, PAGE, 0600);
    shmctl(reused, IPC_RMID, 0);
    reused = shmget(key + 2, PAGE, IPC_CREAT | IPC_EXCL | 0600);

    int set = semget(key, 5, IPC_CREAT | IPC_EXCL | 0660);
    unsigned short values[5] = {0, 1, 7, 32767, 3}, now[5];
    union semun argument = {.values = values};
    EQUAL(semctl(set, 0, SETALL, argument), 0);
    int untouched = semget(key + 1, 2, IPC_CREAT | IPC_EXCL | 0600);

    // What is taken back at the end: from several semaphores of a large set, by operations in both directions.
    int large = semget(key + 2, 150, IPC_CREAT | IPC_EXCL | 0600);
    struct sembuf held_back[] = {{3, 5, SEM_UNDO}, {140, 20000, 0}, {140, -19990, SEM_UNDO}, {141, 32767, 0}, {141, -32767, SEM_UNDO}, {149, 1, SEM_UNDO}};
    EQUAL(semop(large, held_back, 6), 0);
    struct sembuf again_back = {.sem_num = 3, .sem_op = -2, .sem_flg = SEM_UNDO};
    EQUAL(semop(large, &again_back, 1), 0);

    int queue = msgget(key, IPC_CREAT | IPC_EXCL | 0600), empty = msgget(key + 1, IPC_CREAT | IPC_EXCL | 0600);
    static struct text message = {.type = 3}, received;
    for (size_t i = 0; i < sizeof message.text; i++) message.text[i] = (char)(i * 7);
    EQUAL(msgsnd(queue, &message, sizeof message.text, 0), 0);
    message.type = 9;
    EQUAL(msgsnd(queue, &message, 0, 0), 0);
    message.type = 3;
    EQUAL(msgsnd(queue, &message, 5, 0), 0);

    pause_here();

    EXPECT(!strcmp(one, "first page") && !strcmp(two + 3 * PAGE, "last page"));
    one[PAGE] = 'x';
    EQUAL(two[PAGE], 'x');
    EXPECT(mapped(one, "rw-s") && mapped(two, "r--s"));
    EQUAL(mprotect(two, PAGE, PROT_READ | PROT_WRITE), -1);
    EQUAL(shmget(key, 0, 0), keyed);
    EQUAL(shmctl(keyed, IPC_STAT, &status), 0);
    EQUAL(status.shm_segsz, 3 * PAGE + 100);
    EQUAL(status.shm_perm.mode & 0777, 0640);
    EQUAL(status.shm_perm.uid, geteuid());
    EQUAL(status.shm_nattch, 2);

    EQUAL(shmctl(removed, IPC_STAT, &status), 0);
    EXPECT(status.shm_perm.mode & SHM_DEST);
    EQUAL(held[0], 'a');
    EQUAL(held[2 * PAGE], 'c');
    EQUAL(place[0], 'e');
    EXPECT(!strcmp(hole, "in the hole") && mapped(held + 3 * PAGE, "---s"));
    mprotect(held + 3 * PAGE, PAGE, PROT_READ);
    EQUAL(held[3 * PAGE], 'd');
    char *again = attach(removed, 0, 0);
    EQUAL(again[PAGE], 'b');
    place[1] = 'y';
    EQUAL(again[4 * PAGE + 1], 'y');
    EQUAL(shmdt(again), 0);

    EQUAL(shmget(key + 1, 0, 0), loose);
    briefly = attach(loose, 0, 0);
    EXPECT(!strcmp(briefly + 20 * PAGE, "nobody has it") && briefly[0] == 0);
    EQUAL(shmdt(briefly), 0);
    EQUAL(shmget(key + 2, 0, 0), reused);

    EQUAL(semget(key, 0, 0), set);
    argument.values = now;
    EQUAL(semctl(set, 0, GETALL, argument), 0);
    EXPECT(!memcmp(now, values, sizeof now));
    struct sembuf take = {.sem_num = 2, .sem_op = -7, .sem_flg = IPC_NOWAIT};
    EQUAL(semop(set, &take, 1), 0);
    EQUAL(semget(key + 1, 0, 0), untouched);

    EQUAL(semget(key + 2, 0, 0), large);
    EQUAL(semctl(large, 3, GETVAL), 3);
    EQUAL(semctl(large, 140, GETVAL), 10);
    EQUAL(semctl(large, 141, GETVAL), 0);
    // Takes back as the end of the process would.
    EQUAL(unshare(CLONE_SYSVSEM), 0);
    EQUAL(semctl(large, 3, GETVAL), 0);
    EQUAL(semctl(large, 140, GETVAL), 20000);
    EQUAL(semctl(large, 141, GETVAL), 32767);
    EQUAL(semctl(large, 149, GETVAL), 0);
    EQUAL(semctl(large, 0, GETVAL), 0);

    EQUAL(msgget(key, 0), queue);
    EQUAL(msgget(key + 1, 0), empty);
    EQUAL(msgrcv(queue, &received, sizeof received.text, 9, IPC_NOWAIT), 0);
    EQUAL(msgrcv(queue, &received, sizeof received.text, 0, IPC_NOWAIT), sizeof received.text);
    EXPECT(received.type == 3 && !memcmp(received.text, message.text, sizeof message.text));
    EQUAL(msgrcv(queue, &received, sizeof received.text, 0, IPC_NOWAIT), 5);
    EQUAL(msgrcv(queue, &received, sizeof received.text, 0, IPC_NOWAIT), -1);
    EQUAL(msgrcv(empty, &received, sizeof received.text, 0, IPC_NOWAIT), -1);

    shmctl(keyed, IPC_RMID, 0);
    shmctl(loose, IPC_RMID, 0);
    shmctl(reused, IPC_RMID, 0);
    semctl(set, 0, IPC_RMID);
    semctl(large, 0, IPC_RMID);
    semctl(untouched, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, 0);
    msgctl(empty, IPC_RMID, 0);
    return finish();
}
